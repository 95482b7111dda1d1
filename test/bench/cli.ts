import { spawn } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import { pathToFileURL } from 'node:url'
import { PROGRAM, startRows, User } from '../cli/support.ts'
import { startApp } from '../support/app.ts'
import type { Row } from './rows.ts'

/** Start times and memory of the command line. Usage: node test/bench/cli.ts [runs of each command, default 15] */
const ROWS = 100_000

const median = (values: number[]): number => values.sort((a, b) => a - b)[Math.floor(values.length / 2)]
const rounded = (value: number): number => Math.round(value)

/** Median of the milliseconds of some calls, after one that fills caches. */
async function timeOf(runs: number, call: () => Promise<unknown>): Promise<number> {
  const times: number[] = []
  await call()
  for (let n = 0; n < runs; n++) {
    const start = performance.now()
    await call()
    times.push(performance.now() - start)
  }
  return median(times)
}

/** Peak of the resident memory of a command in MB, as Linux counts it. */
async function peakOf(args: readonly string[], env: Record<string, string>): Promise<number> {
  const child = spawn(process.execPath, [PROGRAM, ...args], { env, stdio: ['ignore', 'pipe', 'inherit'] })
  let kilobytes = 0
  child.stdout.on('data', () => {
    const status = fs.readFileSync(`/proc/${child.pid}/status`, 'utf8')
    kilobytes = Math.max(kilobytes, Number(/VmHWM:\s+(\d+)/.exec(status)?.[1] ?? 0))
  })
  const [code] = await once(child, 'close')
  if (code !== 0) throw new Error(`muster ${args.join(' ')} ended with ${code}`)
  return (kilobytes * 1024) / 1e6
}

export async function run(runs = 15): Promise<Row[]> {
  const app = await startApp()
  const rows = await startRows(ROWS, 1000)
  const { key } = await app.project()
  const user = new User(app.url, key.token)
  try {
    const actor = (await key.post('/actors', { name: 'read' })).body.id
    const command = (...args: string[]) =>
      timeOf(runs, async () => {
        const { code, stderr } = await user.run(args)
        if (code !== 0) throw new Error(stderr)
      })
    const empty = user.file('empty.mjs', '')
    const bare = `${rounded(await timeOf(runs, () => user.run([], { program: empty })))} ms an empty program of Node`
    const version = await command('--version')
    const get = await command('actors', 'get', actor)
    const request = await timeOf(runs, () => key.get(`/actors/${actor}`))
    const completion = await command('__complete', 'actors', '')
    const peak = await peakOf(['actors', 'list', '--all', '--jsonl'], {
      ...user.env,
      MUSTER_URL: rows.url,
      PATH: process.env.PATH as string,
    })
    return [
      { what: 'muster --version', value: rounded(version), unit: 'ms', target: '<= 150', note: bare },
      {
        what: 'muster actors get beyond the request',
        value: rounded(get - request),
        unit: 'ms',
        target: '<= 350',
        note: `${rounded(get)} ms, the request ${request.toFixed(1)} ms`,
      },
      { what: 'completion of a verb', value: rounded(completion), unit: 'ms', target: '<= 80', note: bare },
      { what: `peak memory of --all over ${ROWS} rows of 1 KB`, value: rounded(peak), unit: 'MB', target: '< 120' },
    ]
  } finally {
    user.close()
    rows.close()
    await app.close()
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run(process.argv[2] ? Number(process.argv[2]) : undefined))
  process.exit(0)
}
