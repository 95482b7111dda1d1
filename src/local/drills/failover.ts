import { setTimeout as sleep } from 'node:timers/promises'
import { Cluster, findServer, startCluster } from './cluster.ts'
import { type Database, query } from './deployment.ts'
import type { Drill } from './drill.ts'
import { waitUntilNone } from './wait.ts'

const PROGRAMS = ['pg_basebackup']

/** A synchronous pair of servers. Its URL lists both; processes use the server that accepts writes. */
type Pair = Database & { primary: Cluster; standby: Cluster }

/** Starts a primary and a standby that streams from it, without which no commit is acknowledged. */
async function openPair(): Promise<Pair> {
  const bin = findServer(PROGRAMS)
  const primary = await startCluster(bin)
  const standby = await Cluster.open(bin)
  const close = async () => {
    await standby.close()
    await primary.close()
  }
  try {
    await standby.run('pg_basebackup', [
      `--pgdata=${standby.dir}`,
      `--dbname=${primary.url('postgres')}`,
      '--wal-method=stream',
      '--checkpoint=fast',
      '--write-recovery-conf',
    ])
    await standby.start()
    await query(primary.url('postgres'), `alter system set synchronous_standby_names = '*'`)
    await query(primary.url('postgres'), 'select pg_reload_conf()')
    const synchronous = `select from pg_stat_replication where sync_state = 'sync'`
    await waitUntilNone('connection of the standby', async () => {
      return (await query(primary.url('postgres'), synchronous)).length > 0 ? 0 : 1
    })
    const hosts = [primary, standby].map(({ port }) => `127.0.0.1:${port}`).join()
    return { url: `postgres://muster@${hosts}/muster?target_session_attrs=read-write`, close, primary, standby }
  } catch (error) {
    await close()
    throw error
  }
}

/** The primary of a synchronous pair crashes, and the standby is promoted. */
export const failover: Drill = {
  name: 'failover',
  summary: 'the primary of a synchronous pair of servers crashes, and the standby is promoted',
  seconds: 40,
  requires: () => void findServer(PROGRAMS),
  openDatabase: openPair,
  async break({ database, seconds, note }) {
    const { primary, standby } = database as Pair
    await sleep((seconds * 1000) / 3)
    await primary.crash()
    note('the primary has crashed')
    await standby.promote()
    note('the standby is promoted')
  },
}
