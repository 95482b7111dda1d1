import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import pg from 'pg'
import { WORKER_KINDS } from '#core/work/settings.ts'
import { runDrill } from '#local/drills/drill.ts'
import { kill } from '#local/drills/kill.ts'
import { KINDS } from '#local/drills/kinds.ts'
import type { Call } from '#local/drills/receiver.ts'
import { receiverDown } from '#local/drills/receiver-down.ts'
import { exitCodeOf, type Report, toMarkdown } from '#local/drills/report.ts'
import { eventually, startApp } from '../../support/app.ts'
import { launch } from '../../support/commands.ts'
import { serverUrl } from '../../support/postgres.ts'

describe('drills', function () {
  this.timeout(300_000)
  const directory = fs.mkdtempSync(path.join(tmpdir(), 'muster-drills-'))
  after(() => fs.rmSync(directory, { recursive: true }))

  const drill = async (args: string[], env: Record<string, string> = {}) => {
    const running = launch('bin/muster.mjs', ['drill', ...args], { DATABASE_URL: await serverUrl(), ...env })
    const code = await running.ended
    return { code, pid: running.child.pid as number, ...running.output }
  }

  /** Databases of a drill that were not dropped. */
  const databases = async (pid: number) => {
    const client = new pg.Client({ connectionString: await serverUrl() })
    await client.connect()
    try {
      return (await client.query('select from pg_database where starts_with(datname, $1)', [`muster_drill_${pid}_`]))
        .rows
    } finally {
      await client.end()
    }
  }

  /** Children of a process, and their children. */
  function descendants(pid: number): number[] {
    const found = spawnSync('pgrep', ['-P', String(pid)], { encoding: 'utf8' })
      .stdout.split('\n')
      .filter(Boolean)
    return found.flatMap(child => [Number(child), ...descendants(Number(child))])
  }

  for (const [name, step] of [
    ['kill', 'kill a web process and a worker'],
    ['receiver-down', 'deliveries are refused'],
  ])
    it(`${name}: holds its promises and reports every kind of work`, async () => {
      const file = path.join(directory, `${name}.md`)
      const { code, pid, stdout, stderr } = await drill([name, '--seconds', '6', '--json', '--out', file])
      assert.ok(code === 0 || code === 1, `${stdout}\n${stderr}`)
      const report = JSON.parse(stdout) as Report
      const broken = report.promises.filter(({ held }) => !held)
      // A busy machine refuses requests for a time; they were repeated.
      const isBusy = broken.some(
        ({ name, broken_by }) => name === 'available' && /SERVICE_NOT_READY/.test(broken_by[0]),
      )
      assert.deepEqual(broken.slice(isBusy ? 1 : 0), [], stdout)
      assert.deepEqual([report.drill, report.held, report.load_seconds], [name, !isBusy, 6])
      assert.equal(code, isBusy ? 1 : 0)
      assert.deepEqual(
        report.kinds.map(({ kind, lost, doubled }) => ({ kind, lost, doubled })),
        KINDS.map(kind => ({ kind: kind.name, lost: 0, doubled: 0 })),
      )
      for (const { kind, acknowledged, longest_wait_ms } of report.kinds)
        assert.ok(acknowledged > 0 && longest_wait_ms > 0, kind)
      assert.ok(report.timeline.some(({ text }) => text === step))
      assert.equal(fs.readFileSync(file, 'utf8'), toMarkdown(report))
      assert.deepEqual(await databases(pid), [])
    })

  it('detects a lost call and a doubled call', async () => {
    const changed: string[] = []
    const record = (call: Call): Call[] => {
      if (changed.includes(call.path) || !['/tools/firings', '/tools/tasks'].includes(call.path)) return [call]
      changed.push(call.path)
      return call.path === '/tools/firings' ? [] : [call, { ...call, key: `${call.key}:again` }]
    }
    const report = await runDrill(
      { ...kill, promises: [], processes: { web: 1, worker: 1 }, break: async () => {} },
      { seconds: 1, databaseUrl: await serverUrl(), receiver: { record } },
    )
    assert.equal(exitCodeOf(report), 1)
    const of = (name: string) => report.kinds.find(({ kind }) => kind === name)
    assert.deepEqual([of('trigger firings')?.lost, of('trigger firings')?.doubled], [1, 0])
    assert.deepEqual([of('tasks')?.lost, of('tasks')?.doubled], [0, 1])
    assert.deepEqual(
      report.promises.filter(({ held }) => !held),
      [
        { name: 'nothing-lost', held: false, broken_by: ['trigger firings: 1 lost'] },
        { name: 'nothing-doubled', held: false, broken_by: ['tasks: 1 doubled'] },
      ],
    )
    assert.deepEqual([report.totals.lost, report.totals.doubled, report.held], [1, 1, false])
  })

  it('runs against a deployment that others use, and deletes its project', async () => {
    const app = await startApp({ workers: [...WORKER_KINDS] })
    try {
      const { status } = await app.admin.post('/projects', { name: 'of others' })
      assert.equal(status, 201)
      const staging = { url: app.url, token: app.admin.token, host: '127.0.0.1' }
      const report = await runDrill(receiverDown, { seconds: 3, staging })
      assert.ok(report.held, toMarkdown(report))
      assert.equal(report.machine.postgres, null)
      assert.deepEqual(
        (await app.admin.get('/projects')).body.data.map(({ name }: { name: string }) => name),
        ['of others'],
      )
    } finally {
      await app.close()
    }
  })

  it('leaves neither processes nor files when it is interrupted', async () => {
    const temporary = path.join(directory, 'temporary')
    fs.mkdirSync(temporary)
    fs.chmodSync(directory, 0o711)
    fs.chmodSync(temporary, 0o711)
    const running = launch('bin/muster.mjs', ['drill', 'kill'], { TMPDIR: temporary })
    await eventually(() => running.output.stderr.includes('loaded'), { within: 180_000, what: 'the load' })
    const pids = descendants(running.child.pid as number)
    assert.ok(pids.length >= 4, pids.join())
    assert.equal(await running.stop('SIGINT'), 130)
    const alive = pids.filter(pid => fs.existsSync(`/proc/${pid}`))
    assert.deepEqual(alive, [])
    assert.deepEqual(fs.readdirSync(temporary), [])
  })

  it('exits 2 with a sentence where a drill is not possible', async () => {
    for (const [args, env, sentence] of [
      [['kill', '--url', 'http://127.0.0.1:1'], { MUSTER_TOKEN: 'x' }, /kill breaks processes of the deployment/],
      [['receiver-down', '--url', 'http://127.0.0.1:1'], {}, /MUSTER_TOKEN is not set/],
      [['failover'], { DRILL_PG_BIN: directory }, /pg_basebackup are not in one directory of DRILL_PG_BIN/],
      [['restore'], { DRILL_PG_BIN: directory }, /pg_dump, pg_restore are not in one directory of DRILL_PG_BIN/],
      [['full-disk'], { PATH: directory }, /full-disk needs a small file system, and this user cannot mount one/],
    ] as const) {
      const { code, stdout, stderr } = await drill([...args], env)
      assert.deepEqual([code, stdout], [2, ''], stderr)
      assert.match(stderr, sentence)
    }
    assert.equal((await drill(['unknown'])).code, 2)
    assert.equal((await drill(['kill', '--profile', 'weekly'])).code, 2)
    assert.equal((await drill(['kill', '--out', 'report.txt'])).code, 2)
  })
})
