import { existsSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Check } from './output.ts'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))

/** Parts of a checkout that `npm run build` writes, with a file of each. */
const PARTS = [
  ['the console', 'console/dist/index.html'],
  ['the interactive reference', 'docs/dist/scalar.js'],
  ['the API commands of muster', 'cli/dist/main.js'],
  ['the packages of clients', 'packages/dist/index.json'],
]

/** Warns of parts that are not built: web and workers start without them. */
export function checkBuild(root = ROOT): Check {
  const missing = PARTS.filter(([, file]) => !existsSync(path.join(root, file))).map(([name]) => name)
  if (missing.length === 0) return { name: 'build', status: 'ok', detail: PARTS.map(([name]) => name).join(', ') }
  return {
    name: 'build',
    status: 'warn',
    detail: `not built: ${missing.join(', ')}`,
    fix: 'Run npm ci && npm run build, then npm prune --omit=dev, and restart web.',
  }
}
