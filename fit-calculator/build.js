// Bundle src/ into one file, dist/index.html, that sends no network requests.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build, transform } from "esbuild";

const at = (path) => new URL(path, import.meta.url);
const { outputFiles } = await build({
  entryPoints: [fileURLToPath(at("src/page.js"))],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  write: false,
});
const script = outputFiles[0].text.trim().replaceAll("</script", "<\\/script");
const style = (await transform(readFileSync(at("src/style.css"), "utf8"), { loader: "css", minify: true })).code.trim();
const page = readFileSync(at("src/index.html"), "utf8")
  .replace("/* style */", () => style)
  .replace("/* script */", () => script);
mkdirSync(at("dist"), { recursive: true });
writeFileSync(at("dist/index.html"), page);
console.log(`dist/index.html: ${(page.length / 1024).toFixed(1)} KiB, ${(gzipSync(page).length / 1024).toFixed(1)} KiB gzipped`);
