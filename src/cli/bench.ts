import { spawn } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import { fileURLToPath } from 'node:url'
import { CommandError } from './output.ts'

/** `muster bench`: runs the benchmarks of the checkout and takes over their exit code. */
export async function runBench(args: string[]): Promise<void> {
  const file = fileURLToPath(new URL('../../test/bench/run.ts', import.meta.url))
  if (!fs.existsSync(file))
    throw new CommandError(
      'the benchmarks are not installed: this package came without its test files',
      'Clone the repository, npm install, npm run bench.',
    )
  const child = spawn(process.execPath, [file, ...args], { stdio: 'inherit' })
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => child.kill(signal))
  const [code] = await once(child, 'exit')
  process.exitCode = code ?? 1
}
