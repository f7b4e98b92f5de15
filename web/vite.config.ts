/** How the page is built: two entry pages, workers as modules, and one hash over everything that is served. */
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join, relative, resolve, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig, type Plugin } from "vite";

const here = fileURLToPath(new URL(".", import.meta.url));
const target = resolve(here, "../src/sordino/web/page");

/** All files below a folder, as paths with forward slashes, in one order on every machine. */
function filesOf(folder: string): string[] {
  const found = readdirSync(folder, { recursive: true })
    .map((name) => join(folder, String(name)))
    .filter((path) => statSync(path).isFile());
  return found.map((path) => relative(folder, path).split(sep).join("/")).sort();
}

/**
 * Writes build.json: the SHA-256 of every file, and one over the lines "<hash>  <name>\n" of all of them, which is
 * what `sha256sum` prints, so that anyone can check it with standard tools.
 */
function buildHash(): Plugin {
  return {
    name: "build-hash",
    apply: "build",
    closeBundle() {
      const files = filesOf(target).filter((name) => name !== "build.json");
      const hashes = Object.fromEntries(
        files.map((name) => [name, createHash("sha256").update(readFileSync(join(target, name))).digest("hex")]),
      );
      const lines = files.map((name) => `${hashes[name]}  ${name}\n`).join("");
      const hash = createHash("sha256").update(lines).digest("hex");
      writeFileSync(join(target, "build.json"), `${JSON.stringify({ hash, files: hashes }, null, 1)}\n`);
    },
  };
}

/** Writes licences.txt: those of the packages whose code is in the page. */
function licences(): Plugin {
  return {
    name: "licences",
    apply: "build",
    closeBundle() {
      const { dependencies } = JSON.parse(readFileSync(join(here, "package.json"), "utf8")) as { dependencies: Record<string, string> };
      const texts = Object.entries(dependencies).map(([name, version]) => {
        const text = readFileSync(join(here, "node_modules", name, "LICENSE"), "utf8").trim();
        return `${name} ${version}\n\n${text}\n`;
      });
      writeFileSync(join(target, "licences.txt"), texts.join("\n"));
    },
  };
}

const isolated = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
};

export default defineConfig({
  base: "./",
  plugins: [licences(), buildHash()],
  server: { headers: isolated, proxy: { "/api": { target: "http://127.0.0.1:8000", ws: true } } },
  worker: { format: "es" },
  build: {
    outDir: target,
    emptyOutDir: true,
    target: "es2022",
    sourcemap: false,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 1500,
    rollupOptions: {
      input: { index: join(here, "index.html"), live: join(here, "live.html") },
      checks: { pluginTimings: false }, // a slow machine is no defect of the page
    },
  },
});
