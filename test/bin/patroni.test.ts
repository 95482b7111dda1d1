import assert from 'node:assert/strict'
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseEnv, promisify } from 'node:util'
import { parse } from 'yaml'
import { parseDatabaseUrl } from '#core/db/database-url.ts'
import { inTransaction, openPool, type Pool } from '#core/db/pool.ts'
import { rawQuery } from '#core/db/sql.ts'
import { findServer, killServer } from '#local/drills/cluster.ts'
import { eventually } from '../support/app.ts'
import { quietPort } from '../support/postgres.ts'
import { root } from '../support/processes.ts'

const run = promisify(execFile)
const folder = path.join(root, 'deploy/patroni')
const read = (file: string) => fs.readFileSync(path.join(folder, file), 'utf8')
const PATH = `${process.env.PATH}:/usr/sbin:/usr/local/sbin`
const NOBODY = 65_534

/** Whether the programs are on this machine; the sentence says which one is missing. */
function hasPrograms(programs: readonly string[]): boolean {
  const missing = programs.filter(
    program => !PATH.split(path.delimiter).some(directory => fs.existsSync(path.join(directory, program))),
  )
  if (missing.length > 0) console.log(`patroni: skipped, no ${missing.join(', ')}`)
  return missing.length === 0
}

const config = parse(read('patroni.yml'))
const portOf = (address: string) => Number(/:(\d+)$/.exec(address)?.[1])
const servers = [...read('haproxy.cfg').matchAll(/^ {2}server (\S+) (\S+):(\d+) check port (\d+)$/gm)]

describe('files of a pair by Patroni', function () {
  this.timeout(300_000)

  it('name the same hosts and ports', () => {
    const server = parseEnv(read('server.env'))
    const etcd = parseEnv(read('etcd.env'))
    const { restapi, postgresql, etcd3 } = config
    assert.equal(portOf(restapi.listen), portOf(server.PATRONI_RESTAPI_CONNECT_ADDRESS as string))
    assert.equal(portOf(postgresql.listen), portOf(server.PATRONI_POSTGRESQL_CONNECT_ADDRESS as string))
    assert.deepEqual(
      servers.map(([, name, host, port, check]) => [name, host, Number(port), Number(check)]),
      ['db-one', 'db-two'].map(host => [host, host, portOf(postgresql.listen), portOf(restapi.listen)]),
    )
    const members = (etcd.ETCD_INITIAL_CLUSTER as string)
      .split(',')
      .map(member => /^(.+)=http:\/\/\1:2380$/.exec(member)?.[1])
    assert.deepEqual(
      etcd3.hosts.split(','),
      members.map(host => `${host}:${portOf(etcd.ETCD_ADVERTISE_CLIENT_URLS as string)}`),
    )
    assert.equal(portOf(etcd.ETCD_LISTEN_CLIENT_URLS as string), portOf(etcd.ETCD_ADVERTISE_CLIENT_URLS as string))
    assert.equal(portOf(etcd.ETCD_LISTEN_PEER_URLS as string), portOf(etcd.ETCD_INITIAL_ADVERTISE_PEER_URLS as string))
    const readme = read('README.md')
    const [, both, one] = /DATABASE_URL=(\S+db-one\S+?)`[\s\S]*DATABASE_URL=(\S+?)`/.exec(readme) as RegExpExecArray
    assert.deepEqual(
      parseDatabaseUrl(both).urls.map(url => new URL(url).host),
      servers.map(([, , host, port]) => `${host}:${port}`),
    )
    assert.equal(parseDatabaseUrl(both).target, 'read-write')
    assert.ok(read('haproxy.cfg').includes(`bind ${new URL(one).host}\n`))
    for (const file of fs.readdirSync(folder)) if (file !== 'README.md') assert.ok(readme.includes(`\`${file}\``), file)
  })

  it('acknowledge no commit without the standby, keep slots of cells, and obey the rule of the times of Patroni', () => {
    const { dcs } = config.bootstrap
    assert.ok(dcs.loop_wait + 2 * dcs.retry_timeout <= dcs.ttl)
    assert.equal(dcs.synchronous_mode, true)
    assert.deepEqual(dcs.ignore_slots, [{ type: 'logical', plugin: 'pgoutput' }])
    assert.equal(dcs.postgresql.parameters.wal_level, 'logical')
    assert.ok(dcs.postgresql.parameters.max_slot_wal_keep_size)
  })

  describe('that run', () => {
    const children: ChildProcess[] = []
    let directory: string
    let bin: string

    before(function () {
      if (!hasPrograms(['etcd', 'patroni', 'haproxy'])) return this.skip()
      bin = findServer(['pg_basebackup', 'pg_rewind'])
      directory = fs.mkdtempSync(path.join(tmpdir(), 'muster-patroni-'))
      fs.chmodSync(directory, 0o777)
    })
    afterEach(function () {
      if (this.currentTest?.state === 'failed') console.log(lines.join('').slice(-20_000))
    })
    after(async () => {
      for (const child of children.reverse()) {
        // Patroni ends its server.
        child.kill('SIGTERM')
        if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
      }
      if (directory) fs.rmSync(directory, { recursive: true, force: true })
    })

    const lines: string[] = []
    const start = (program: string, args: string[], env: Record<string, string> = {}): void => {
      // PostgreSQL refuses to run as root.
      const owner = process.getuid?.() === 0 ? { uid: NOBODY, gid: NOBODY } : {}
      const child = spawn(program, args, {
        cwd: directory,
        env: { PATH, HOME: directory, LC_ALL: 'C.UTF-8', ...env },
        ...owner,
      })
      children.push(child)
      for (const stream of [child.stdout, child.stderr]) stream.on('data', data => lines.push(String(data)))
    }

    it('promote the standby of a killed primary within seconds, lose no acknowledged write, and take it back', async () => {
      const [client, peer, balancer] = [await quietPort(), await quietPort(), await quietPort()]
      const address = (port: number) => `http://127.0.0.1:${port}`
      start('etcd', [], {
        ...(parseEnv(read('etcd.env')) as Record<string, string>),
        ETCD_DATA_DIR: path.join(directory, 'etcd'),
        ETCD_LISTEN_PEER_URLS: address(peer),
        ETCD_LISTEN_CLIENT_URLS: address(client),
        ETCD_INITIAL_ADVERTISE_PEER_URLS: address(peer),
        ETCD_ADVERTISE_CLIENT_URLS: address(client),
        ETCD_INITIAL_CLUSTER: `db-one=${address(peer)}`,
      })
      const nodes = await Promise.all(
        servers.map(async ([, name]) => ({ name, port: await quietPort(), api: await quietPort() })),
      )
      const file = path.join(directory, 'patroni.yml')
      fs.writeFileSync(file, read('patroni.yml').replace('/var/run/postgresql', directory))
      for (const { name, port, api } of nodes)
        start('patroni', [file], {
          PATRONI_NAME: name,
          PATRONI_ETCD3_HOSTS: `127.0.0.1:${client}`,
          PATRONI_RESTAPI_LISTEN: `127.0.0.1:${api}`,
          PATRONI_RESTAPI_CONNECT_ADDRESS: `127.0.0.1:${api}`,
          PATRONI_POSTGRESQL_LISTEN: `127.0.0.1:${port}`,
          PATRONI_POSTGRESQL_CONNECT_ADDRESS: `127.0.0.1:${port}`,
          PATRONI_POSTGRESQL_DATA_DIR: path.join(directory, name),
          PATRONI_POSTGRESQL_BIN_DIR: bin,
          PATRONI_POSTGRESQL_PGPASS: path.join(directory, `${name}.pgpass`),
          PATRONI_SUPERUSER_PASSWORD: 'super',
          PATRONI_REPLICATION_PASSWORD: 'replication',
        })
      const states = async (): Promise<Map<string, string>> => {
        for (const { api } of nodes)
          try {
            const { members } = (await (await fetch(`${address(api)}/cluster`)).json()) as any
            return new Map(members.map(({ name, role, state }: any) => [name, `${role} ${state}`]))
          } catch {
            // Not started yet, or restarting.
          }
        return new Map()
      }
      const isPair = (found: Map<string, string>) =>
        [...found.values()].some(state => /^leader running/.test(state)) &&
        [...found.values()].some(state => /^sync_standby (running|streaming)/.test(state))
      await eventually(async () => isPair(await states()), { within: 120_000, what: 'a leader and its standby' })
      const leaderOf = (found: Map<string, string>) => nodes.find(({ name }) => found.get(name)?.startsWith('leader'))
      const leader = leaderOf(await states()) as (typeof nodes)[number]

      let balancing = read('haproxy.cfg')
        .replaceAll('127.0.0.1:5000', `127.0.0.1:${balancer}`)
        .replaceAll(/^ {2}(user|group) haproxy\n/gm, '')
      for (const { name, port, api } of nodes)
        balancing = balancing.replace(`${name}:5432 check port 8008`, `127.0.0.1:${port} check port ${api}`)
      fs.writeFileSync(path.join(directory, 'haproxy.cfg'), balancing)
      await run('haproxy', ['-c', '-f', path.join(directory, 'haproxy.cfg')], { env: { PATH } })
      start('haproxy', ['-db', '-f', path.join(directory, 'haproxy.cfg')])

      const hosts = nodes.map(({ port }) => `127.0.0.1:${port}`).join()
      const urls = [
        `postgres://postgres:super@${hosts}/postgres?target_session_attrs=read-write`,
        `postgres://postgres:super@127.0.0.1:${balancer}/postgres`,
      ]
      const open = (databaseUrl: string) => openPool({ databaseUrl, connections: 4 }).catch(() => null)
      const pools: Pool[] = []
      try {
        for (const url of urls) pools.push(await eventually(() => open(url), { what: `a connection to ${url}` }))
        await pools[0].query(rawQuery('create table acknowledged (id int primary key)'))
        await pools[0].query(rawQuery(`select pg_create_logical_replication_slot('muster_absent', 'pgoutput')`))
        await failOver(pools, async () => {
          const pid = fs.readFileSync(path.join(directory, leader.name, 'postmaster.pid'), 'utf8').split('\n')[0]
          killServer(Number(pid))
        })
        await eventually(async () => isPair(await states()), { within: 120_000, what: 'the old primary as standby' })
        assert.notEqual(leaderOf(await states())?.name, leader.name)
      } finally {
        await Promise.all(pools.map(pool => pool.end()))
      }
    })

    /** Writes by all pools until each of them writes after the failover, and compares the acknowledged writes. */
    async function failOver(pools: readonly Pool[], kill: () => Promise<void>): Promise<void> {
      const acknowledged: number[][] = pools.map(() => [])
      let next = 0
      let isEnding = false
      const writers = pools.map(async (pool, index) => {
        while (!isEnding) {
          const id = next++
          await inTransaction(pool, tx => tx.query(rawQuery('insert into acknowledged values ($1)', [id]))).then(
            () => acknowledged[index].push(id),
            () => sleep(50),
          )
        }
      })
      const progress = () => {
        const before = acknowledged.map(({ length }) => length)
        return eventually(() => acknowledged.every(({ length }, index) => length > before[index] + 20), {
          within: 60_000,
          what: 'acknowledged writes of each pool',
        })
      }
      await progress()
      // Longer than loop_wait: Patroni has not dropped the slot that nothing uses.
      await sleep((config.bootstrap.dcs.loop_wait + 1) * 1000)
      const slots = await pools[0].any(
        rawQuery('select slot_name from pg_replication_slots where slot_type = $1', ['logical']),
      )
      assert.deepEqual(slots, [{ slot_name: 'muster_absent' }])
      await kill()
      const killedAt = performance.now()
      await sleep(500)
      await progress()
      console.log(`patroni: writes continue ${Math.round(performance.now() - killedAt)} ms after the kill`)
      isEnding = true
      await Promise.all(writers)
      const lost = await pools[0].any(
        rawQuery(
          `select a.id from unnest($1::int[]) as a (id) where not exists (select from acknowledged t where t.id = a.id)`,
          [acknowledged.flat()],
        ),
      )
      assert.deepEqual(lost, [])
    }
  })
})
