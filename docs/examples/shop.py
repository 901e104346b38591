# %% [markdown]
# # A shop whose mails fail
#
# The cells of a notebook, and a program as well: it runs from top to bottom in any empty directory, and needs
# `pip install "bucketq[spark]"` and Java 17. A shop writes to its customers. Some mails fail. Who did not get
# one, why, and what became of it?

# %%
import bucketq
import bucketq.spark

spark = bucketq.spark.session()
URL = "shop"

# %% [markdown]
# ## Customers become jobs
#
# The queue gives up after two attempts, at once, and keeps all that finishes in its archive. Each row of the
# DataFrame is a job; the struct becomes its JSON payload. With a key the write can be repeated: it happens once.

# %%
with bucketq.open(URL) as file:
    file.queue("mail").configure(archive=True, max_attempts=2, backoff=bucketq.Backoff.none())

customers = spark.sql(
    """
    SELECT id, concat('customer', id, if(id % 10 = 3, '@nowhere.invalid', '@example.org')) AS address,
           element_at(array('de', 'fr', 'it'), cast(id % 3 + 1 AS int)) AS country
    FROM range(90)
    """
)
jobs = customers.selectExpr("struct(id, address) AS payload", "country AS `group`")
for _ in range(2):
    jobs.write.format("bucketq").mode("append").options(url=URL, queue="mail", key="spring").save()

with bucketq.open(URL) as file:
    waiting = file.queue("mail").counts().counts["ready"]
print(f"{waiting} mails wait")


# %% [markdown]
# ## Executors send them
#
# The return value of the function becomes the job's result. An exception fails the attempt; after two the job is dead.


# %%
def send(job):
    if job.data["address"].endswith(".invalid"):
        raise ConnectionError(f"no mail server for {job.data['address'].split('@')[1]}")
    return {"to": job.data["address"]}


first = bucketq.spark.process(spark, URL, "mail", send, batch=20)
print(f"{first.acked} sent, {first.failed} attempts failed")

# %% [markdown]
# ## Who did not get one?
#
# The history is a DataFrame: payloads are bytes, and join with what the shop knows.


# %%
def dead():
    history = spark.read.format("bucketq").options(url=URL, queues="mail", states="dead").load()
    told = history.selectExpr(
        "get_json_object(decode(payload, 'utf-8'), '$.id') AS id", "attempts", "last_error"
    )
    return told.join(customers, "id")


lost = dead().groupBy("country").count().orderBy("country")
for row in lost.collect():
    print(f"{row['country']}: {row['count']} without mail")
print(dead().first()["last_error"])

# %% [markdown]
# ## A log that continues where it stopped
#
# The stream gives each finished job once, also when it is started again: its checkpoint says how far it was.


# %%
def copy():
    before = spark.read.parquet("shop-finished").count() if copied else 0
    finished = spark.readStream.format("bucketq").options(url=URL, queues="mail").load()
    out = finished.select("id", "run", "state", "finished_at").writeStream.format("parquet")
    out = out.option("path", "shop-finished").option("checkpointLocation", "shop-checkpoint")
    out.trigger(availableNow=True).start().awaitTermination()
    copied.append("once more")
    return spark.read.parquet("shop-finished").count() - before


copied = []
print(f"{copy()} finished jobs copied")

# %% [markdown]
# ## The mail server is back
#
# Dead jobs live again; each has a second life, which ends well. The stream brings those only.

# %%
with bucketq.open(URL) as file:
    again = file.queue("mail").requeue_all()
print(f"{again} mails once more")
second = bucketq.spark.process(spark, URL, "mail", lambda job: {"to": job.data["address"]})
print(f"{second.acked} sent, {copy()} finished jobs copied")

# %% [markdown]
# ## What does it come to?
#
# The pipeline counts each job once, by its newest life: nobody is without mail any more. `shop-analysis/report.html` shows
# it with plots, and says whether a queue in object storage fits.

# %%
analysed = bucketq.spark.pipeline(spark, URL, "shop-analysis")
hours = spark.read.parquet("shop-analysis/hours").groupBy("queue").sum("arrivals", "completed", "dead", "retries")
row = hours.first()
print(
    f"{analysed.lives} lives of {analysed.jobs} jobs: {row['sum(completed)']} sent, {row['sum(dead)']} dead"
)
