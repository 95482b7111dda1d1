import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import { promisify } from 'node:util'

const run = promisify(execFile)

const packages = path.resolve(import.meta.dirname, '../../packages/dist')

/** Returns the path of the built wheel. */
export const wheelFile = (): string =>
  path.join(packages, fs.readdirSync(packages).find(name => name.endsWith('.whl'))!)

/**
 * Returns the program of Python. Null without one, which the caller counts as skipped; an error instead where
 * CI_REQUIRE_PYTHON is 1.
 */
export async function findPython(): Promise<string | null> {
  const program = process.env.PYTHON_PATH || 'python3'
  try {
    await run(program, ['-c', 'import sys, pip; assert sys.version_info >= (3, 9)'])
    return program
  } catch {
    const reason = 'skipped, no Python 3.9 or later with pip (set PYTHON_PATH)'
    assert.notEqual(process.env.CI_REQUIRE_PYTHON, '1', reason)
    console.log(`python: ${reason}`)
    return null
  }
}

/** Runs a script with the client in its wheel, and `input` on stdin; returns the JSON that it prints. */
export async function runPython(
  program: string,
  script: string,
  args: readonly string[] = [],
  input = '',
): Promise<any> {
  const running = run(program, ['-c', script, ...args], { env: { ...process.env, PYTHONPATH: wheelFile() } })
  running.child.stdin!.end(input)
  return JSON.parse((await running).stdout)
}
