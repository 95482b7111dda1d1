import { Cluster, findServer, startCluster } from './cluster.ts'
import { type Database, query } from './deployment.ts'
import { waitUntilNone } from './wait.ts'

/** Programs of a server that a pair needs. */
export const PAIR_PROGRAMS = ['pg_basebackup']

/** A synchronous pair of servers. Its URL lists both; processes use the server that accepts writes. */
export type Pair = Database & { primary: Cluster; standby: Cluster }

/** Starts a primary and a standby that streams from it, without which no commit is acknowledged. */
export async function openPair(): Promise<Pair> {
  const bin = findServer(PAIR_PROGRAMS)
  const primary = await startCluster(bin)
  const standby = await Cluster.open(bin)
  const close = async () => {
    await standby.close()
    await primary.close()
  }
  try {
    await startStandby(standby, primary)
    const hosts = [primary, standby].map(({ port }) => `127.0.0.1:${port}`).join()
    return { url: `postgres://muster@${hosts}/muster?target_session_attrs=read-write`, close, primary, standby }
  } catch (error) {
    await close()
    throw error
  }
}

/** Copies a primary into the directory of a standby, which must be empty, and starts it. */
async function startCopy(standby: Cluster, primary: Cluster): Promise<void> {
  await standby.run('pg_basebackup', [
    `--pgdata=${standby.dir}`,
    `--dbname=${primary.url('postgres')}`,
    '--wal-method=stream',
    '--checkpoint=fast',
    '--write-recovery-conf',
  ])
  await standby.start()
}

/** Starts a standby of a primary, which does not wait for it. */
export async function openStandby(primary: Cluster): Promise<Cluster> {
  const standby = await Cluster.open(primary.bin)
  try {
    await startCopy(standby, primary)
    return standby
  } catch (error) {
    await standby.close()
    throw error
  }
}

/** Copies a primary into the directory of a standby, which must be empty, and starts it as its synchronous standby. */
export async function startStandby(standby: Cluster, primary: Cluster): Promise<void> {
  await startCopy(standby, primary)
  // After the copy, so that the standby waits for no other server when it is promoted.
  await query(primary.url('postgres'), `alter system set synchronous_standby_names = '*'`)
  await query(primary.url('postgres'), 'select pg_reload_conf()')
  const synchronous = `select from pg_stat_replication where sync_state = 'sync'`
  await waitUntilNone('connection of the standby', async () => {
    return (await query(primary.url('postgres'), synchronous)).length > 0 ? 0 : 1
  })
}
