import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import path from 'node:path'

// Runs after `npm ci`. Without development packages there is nothing to build with: the last build is used.
const root = path.resolve(import.meta.dirname, '..')
const needed = [
  'node_modules/node/bin/node',
  'node_modules/@hey-api/openapi-ts',
  'node_modules/typescript-native',
  'node_modules/vite',
]
if (needed.every(file => existsSync(path.join(root, file)))) {
  const { status } = spawnSync(path.join(root, needed[0]), ['scripts/build.ts'], { cwd: root, stdio: 'inherit' })
  process.exitCode = status ?? 1
} else console.log('muster: not built, because the development packages are not installed')
