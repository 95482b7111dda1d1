import fs from 'node:fs'
import path from 'node:path'
import { build } from 'esbuild'

/**
 * Bundles the command line into `cli/dist`: completion, everything else, and YAML. Each file of the start costs 0.5 ms,
 * so the code is not split further; a module of Node that few commands use is imported dynamically.
 */

const root = path.resolve(import.meta.dirname, '..')
const outdir = path.join(root, 'cli/dist')
fs.rmSync(outdir, { recursive: true, force: true })
await build({
  entryPoints: {
    complete: path.join(root, 'cli/src/complete.ts'),
    main: path.join(root, 'cli/src/main.ts'),
    // The modules of the package; its form for Node has none.
    yaml: path.join(root, 'node_modules/yaml/browser/index.js'),
  },
  outdir,
  bundle: true,
  minifySyntax: true,
  minifyWhitespace: true,
  format: 'esm',
  platform: 'node',
  // The same bytes wherever the packages are.
  absWorkingDir: root,
  preserveSymlinks: true,
  target: 'node20',
  alias: {
    '@muster/client': path.join(root, 'client/src/index.ts'),
    '@muster/client/operations': path.join(root, 'client/src/generated/operations.ts'),
  },
  plugins: [
    {
      name: 'yaml',
      setup: ({ onResolve }) => onResolve({ filter: /^yaml$/ }, () => ({ path: './yaml.js', external: true })),
    },
  ],
  logLevel: 'warning',
})
