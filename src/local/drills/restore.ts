import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { findServer, startCluster } from './cluster.ts'
import { type Database, query } from './deployment.ts'
import type { Drill, OwnScene } from './drill.ts'

const PROGRAMS = ['pg_dump', 'pg_restore']
const RESTORED = 'restored'

/**
 * All processes are killed, the database is backed up by pg_dump, restored into another database, and the processes start on
 * that one.
 */
export const restore: Drill = {
  name: 'restore',
  summary: 'kills all processes, backs the database up, restores it elsewhere, and continues there',
  seconds: 30,
  requires: () => void findServer(PROGRAMS),
  async openDatabase(): Promise<Database> {
    const cluster = await startCluster(findServer(PROGRAMS))
    return { url: cluster.url('muster'), close: () => cluster.close() }
  },
  async break(scene: OwnScene) {
    const { deployment, seconds, note } = scene
    await sleep((seconds * 1000) / 2)
    await deployment.killAll()
    note('all processes are killed')
    const bin = findServer(PROGRAMS)
    const file = path.join(deployment.files, 'backup')
    await deployment.run(path.join(bin, 'pg_dump'), [
      '--format=custom',
      `--file=${file}`,
      `--dbname=${deployment.databaseUrl}`,
    ])
    note('the database is backed up')
    const url = new URL(deployment.databaseUrl)
    await query(url.href, `create database ${RESTORED} template template0`)
    url.pathname = `/${RESTORED}`
    await deployment.run(path.join(bin, 'pg_restore'), ['--exit-on-error', `--dbname=${url.href}`, file])
    deployment.useDatabase(url.href)
    await deployment.command(['secrets', 'verify'])
    note('the backup is restored')
    await deployment.startAll({ web: 2, worker: 2 })
    note('the processes run on the restored database')
  },
}
