import fs from 'node:fs'
import path from 'node:path'

/** Copies the script of the interactive reference to `docs/dist/scalar.js`, so that deployments need no package for it. */

const root = path.resolve(import.meta.dirname, '..')
const folder = path.join(root, 'docs/dist')
fs.mkdirSync(folder, { recursive: true })
fs.copyFileSync(
  path.join(root, 'node_modules/@scalar/api-reference/dist/browser/standalone.js'),
  path.join(folder, 'scalar.js'),
)
