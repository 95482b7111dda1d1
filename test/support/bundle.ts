import fs from 'node:fs'
import path from 'node:path'
import { pathToFileURL } from 'node:url'
import { build, type Plugin } from 'esbuild'
import { BUNDLES, PROGRAMS, root } from './bundled.ts'

/**
 * Bundles the programs that tests start hundreds of times, each with the packages that it loads at its start: a worker
 * is ready after two thirds of the processor time. Then loads a bundle and the application, so that their modules are
 * in the compile cache before several processes would compile them concurrently.
 */

/** Modules find files where their sources are, and packages that are loaded later stay where they are. */
const inPlace: Plugin = {
  name: 'in place',
  setup({ onLoad, onResolve }) {
    onLoad({ filter: /\.ts$|\/bin\/muster\.mjs$/ }, async file => ({
      loader: 'ts',
      contents: (await fs.promises.readFile(file.path, 'utf8')).replaceAll(
        'import.meta.url',
        JSON.stringify(pathToFileURL(file.path).href),
      ),
    }))
    onResolve({ filter: /^[^./#]/ }, ({ kind, importer }) =>
      kind === 'dynamic-import' && importer.endsWith('.ts') ? { external: true } : null,
    )
  },
}

fs.rmSync(BUNDLES, { recursive: true, force: true })
await build({
  entryPoints: Object.fromEntries(Object.entries(PROGRAMS).map(([name, file]) => [name, path.join(root, file)])),
  outdir: BUNDLES,
  bundle: true,
  splitting: true,
  format: 'esm',
  platform: 'node',
  target: 'node24',
  absWorkingDir: root,
  preserveSymlinks: true,
  outExtension: { '.js': '.mjs' },
  // The one finds files next to its own, the other is not installed.
  external: ['pino', 'pg-native'],
  banner: {
    js: `import { createRequire as requireOf } from 'node:module'; const require = requireOf(import.meta.url)`,
  },
  plugins: [inPlace],
  logLevel: 'warning',
})
await import(path.join(BUNDLES, 'host.mjs'))
await import('./app.ts')
process.exit()
