import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '../..')

/** Settings of this machine that would reach into a process under test. */
const FOREIGN =
  /^(DATABASE_|PG|PORT$|HOST$|BASE_URL$|ADMIN_|JWT_|SECRETS_|LOG_LEVEL$|NODE_ENV$|INSTANCE_ID$|HOSTNAME$|(OPENAI|ANTHROPIC|GEMINI)_API_KEY$|WEB_EXECUTES$)/

export type Running = {
  child: ChildProcess
  /** The output so far. */
  output: { stdout: string; stderr: string }
  /** Exit code, or the signal that ended it. */
  ended: Promise<number | string>
  stop(signal?: NodeJS.Signals): Promise<number | string>
}

/** Starts a program of this repository, `file` relative to its root, with nothing of this machine's settings. */
export function launch(file: string, args: readonly string[], env: Record<string, string> = {}): Running {
  const clean = Object.fromEntries(Object.entries(process.env).filter(([name]) => !FOREIGN.test(name)))
  const child = spawn(process.execPath, [path.join(root, file), ...args], {
    cwd: root,
    env: { ...clean, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const output = { stdout: '', stderr: '' }
  for (const name of ['stdout', 'stderr'] as const) child[name]?.on('data', part => (output[name] += part))
  const ended = once(child, 'close').then(([code, signal]) => code ?? signal)
  return {
    child,
    output,
    ended,
    stop(signal = 'SIGTERM') {
      child.kill(signal)
      return ended
    },
  }
}

/** Runs a program to its end. */
export async function run(file: string, args: readonly string[], env: Record<string, string> = {}) {
  const running = launch(file, args, env)
  const timer = setTimeout(() => running.child.kill('SIGKILL'), 180_000)
  const code = await running.ended
  clearTimeout(timer)
  return { code, ...running.output }
}
