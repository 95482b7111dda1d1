import { spawn } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import path from 'node:path'
import { pathToFileURL } from 'node:url'
import { PROGRAM, peakKilobytes, startRows, User } from '../cli/support.ts'
import { startApp } from '../support/app.ts'
import { median, rounded } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * Start times and memory of the command line. The targets are for an idle machine; on a busy one the processor time
 * next to an empty program of Node shows the cost of a start. Usage: node test/bench/cli.ts [runs of each
 * command, default 15]
 */
const ROWS = 100_000

/** Milliseconds of a program: from start to end, and of the processor. */
type Cost = { wall: number; cpu: number }

/** Returns the medians of programs that run in turns, after a first turn that fills caches. */
async function costsOf<Name extends string>(runs: number, user: User, programs: Record<Name, string[]>) {
  const file = path.join(user.directory, 'cpu')
  const probe = user.file(
    'probe.cjs',
    `process.on('exit', () => require('node:fs').writeFileSync('${file}', JSON.stringify(process.cpuUsage())))`,
  )
  const empty = user.file('empty.mjs', '')
  const measured = new Map<string, Cost[]>()
  for (let turn = 0; turn <= runs; turn++)
    for (const [name, args] of Object.entries<string[]>({ empty: [], ...programs })) {
      const start = performance.now()
      const { code, stderr } = await user.run(args, {
        env: { NODE_OPTIONS: `--require=${probe}` },
        ...(name === 'empty' ? { program: empty } : {}),
      })
      const wall = performance.now() - start
      if (code !== 0) throw new Error(stderr)
      const { user: own, system } = JSON.parse(fs.readFileSync(file, 'utf8'))
      if (turn > 0) measured.set(name, [...(measured.get(name) ?? []), { wall, cpu: (own + system) / 1000 }])
    }
  const medians = [...measured].map(([name, all]): [string, Cost] => [
    name,
    { wall: median(all.map(each => each.wall)), cpu: median(all.map(each => each.cpu)) },
  ])
  return Object.fromEntries(medians) as Record<Name | 'empty', Cost>
}

/** Peak of the resident memory of a command in MB, as Linux counts it. */
async function peakOf(args: readonly string[], env: Record<string, string>): Promise<number> {
  const child = spawn(process.execPath, [PROGRAM, ...args], { env, stdio: ['ignore', 'pipe', 'inherit'] })
  let kilobytes = 0
  child.stdout.on('data', () => {
    kilobytes = peakKilobytes(child) ?? kilobytes
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
    const { empty, version, get, completion } = await costsOf(runs, user, {
      version: ['--version'],
      get: ['actors', 'get', actor],
      completion: ['__complete', 'actors', ''],
    })
    const requests: number[] = []
    for (let turn = 0; turn < runs; turn++) {
      const start = performance.now()
      await key.get(`/actors/${actor}`)
      requests.push(performance.now() - start)
    }
    const request = median(requests)
    const note = ({ cpu }: Cost) =>
      `processor ${Math.round(cpu)} ms, ${rounded(cpu / empty.cpu)} x an empty program, which takes ${Math.round(empty.wall)} ms`
    const peak = await peakOf(['actors', 'list', '--all', '--jsonl'], {
      ...user.env,
      MUSTER_URL: rows.url,
      PATH: process.env.PATH as string,
    })
    return [
      { what: 'muster --version', value: Math.round(version.wall), unit: 'ms', target: '<= 150', note: note(version) },
      {
        what: 'muster actors get beyond the request',
        value: Math.round(get.wall - request),
        unit: 'ms',
        target: '<= 350',
        note: note(get),
      },
      {
        what: 'completion of a verb',
        value: Math.round(completion.wall),
        unit: 'ms',
        target: '<= 80',
        note: note(completion),
      },
      { what: `peak memory of --all over ${ROWS} rows of 1 KB`, value: Math.round(peak), unit: 'MB', target: '< 120' },
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
