import fs from 'node:fs'
import path from 'node:path'
import { build } from 'esbuild'

/** Bundles the command line into `cli/dist`: one file that starts quickly, and parts that are loaded when they are used. */

const root = path.resolve(import.meta.dirname, '..')
const outdir = path.join(root, 'cli/dist')
fs.rmSync(outdir, { recursive: true, force: true })
await build({
  entryPoints: [path.join(root, 'cli/src/main.ts')],
  outdir,
  bundle: true,
  splitting: true,
  format: 'esm',
  platform: 'node',
  // The same bytes wherever the packages are.
  absWorkingDir: root,
  preserveSymlinks: true,
  target: 'node20',
  alias: {
    '@muster/client': path.join(root, 'client/src/index.ts'),
    '@muster/client/operations': path.join(root, 'client/src/generated/operations.ts'),
    // The modules of the package; its form for Node has none.
    yaml: path.join(root, 'node_modules/yaml/browser/index.js'),
  },
  logLevel: 'warning',
})
