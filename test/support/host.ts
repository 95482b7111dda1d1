import { loadSettings } from '#config.ts'
import { createLog, type Logger } from '#core/base/log.ts'
import { main } from '#operator/main.ts'
import { startWeb } from '#web.ts'
import { startWorker } from '../../jobs/worker.ts'

type Environment = Record<string, string>

/** Starts a web process or a worker, stops it, or runs a command line to its end. */
export type HostMessage =
  | { what: 'start'; program: 'web' | 'worker'; env: Environment; kinds: string[] }
  | { what: 'stop' }
  | { what: 'command'; env: Environment; args: readonly string[] }

export type CommandResult = { code: number; stdout: string; stderr: string }

/**
 * A process that runs one web process, worker or command line after the other, each as a separate process does: most of
 * what those cost is to load their modules. It ends where they would, and with the process that started it.
 */
let running: Promise<{ stop(): Promise<void> }> | undefined
let log: Logger | undefined
const own = process.env

const failed = (what: string) => (error: unknown) => {
  log?.fatal({ err: error }, what)
  log?.flush(() => process.exit(1))
}

function start(program: 'web' | 'worker', env: Environment, kinds: string[]): void {
  process.env = { ...own, ...env }
  const config = loadSettings(env)
  log = createLog({ level: config.LOG_LEVEL, base: { process: program } })
  running = program === 'web' ? startWeb(config, log) : startWorker(config, log, kinds as typeof config.WORKER_KINDS)
  running.catch(failed('start failed'))
}

/** Waits for the end of the start, which comes a little after the line that reports it. */
const stop = async () => (await running)?.stop()

async function command(args: readonly string[], env: Environment): Promise<CommandResult> {
  const streams = { stdout: process.stdout.write, stderr: process.stderr.write }
  const printed = { stdout: '', stderr: '' }
  for (const name of ['stdout', 'stderr'] as const)
    process[name].write = ((part: string | Uint8Array) => {
      printed[name] += typeof part === 'string' ? part : Buffer.from(part).toString()
      return true
    }) as typeof process.stdout.write
  process.env = { ...own, ...env }
  try {
    const code = await main(args)
    return { code: code || Number(process.exitCode ?? 0), ...printed }
  } finally {
    process.exitCode = undefined
    process.env = own
    for (const name of ['stdout', 'stderr'] as const) process[name].write = streams[name]
  }
}

process.on('unhandledRejection', error => log?.error({ err: error }, 'unhandled rejection'))
process.on('disconnect', () => process.exit())
process.on('message', (message: HostMessage) => {
  if (message.what === 'start') start(message.program, message.env, message.kinds)
  else if (message.what === 'stop') stop().catch(failed('stop failed'))
  else command(message.args, message.env).then(result => process.send?.(result), failed('command failed'))
})
