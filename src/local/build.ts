import { createHash } from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'

/** What the console is built of. */
export const CONSOLE_INPUTS = [
  'client/dist/**/*.js',
  'client/openapi.json',
  'console/index.html',
  'console/*.ts',
  'console/package.json',
  'console/src/**/*',
  'scripts/compress.ts',
  'package-lock.json',
]

/** Returns the hash of the names and contents of files. */
export function hashFiles(root: string, patterns: readonly string[]): string {
  const hash = createHash('sha256')
  for (const file of fs.globSync([...patterns], { cwd: root }).sort()) {
    if (!fs.statSync(path.join(root, file), { throwIfNoEntry: false })?.isFile()) continue
    hash
      .update(`${file}\0`)
      .update(fs.readFileSync(path.join(root, file)))
      .update('\0')
  }
  return hash.digest('hex')
}

/** The file with the hash of the inputs from which a step of the build wrote its outputs. */
export const hashFile = (root: string, step: string): string => path.join(root, 'client/.build', step)

/**
 * Whether the console was built from other files than the checkout has. False where there are no sources, or no
 * build.
 */
export function isConsoleOutdated(root: string): boolean {
  const stored = hashFile(root, 'console')
  return (
    fs.existsSync(path.join(root, 'console/src')) &&
    fs.existsSync(stored) &&
    fs.readFileSync(stored, 'utf8') !== hashFiles(root, CONSOLE_INPUTS)
  )
}
