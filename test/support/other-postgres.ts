import fs from 'node:fs'
import path from 'node:path'
import type { EmbeddedServer } from '#local/postgres.ts'

/** Tests that execute every migration and the statements of every operation. */
export const PROFILE = ['test/core/database.test.ts', 'test/client/every.test.ts']

/** Starts a server with the programs of a directory, of any supported version, on data that is removed when it stops. */
export async function startOther(bin: string): Promise<EmbeddedServer & { pid: number }> {
  // Runs of tests on the embedded server start without the modules of drills.
  const { Cluster } = await import('#local/drills/cluster.ts')
  const cluster = await Cluster.open(bin)
  try {
    await cluster.initialise('--no-sync')
    await cluster.start(['max_connections=300', 'fsync=off', 'synchronous_commit=off'])
    const pid = Number.parseInt(fs.readFileSync(path.join(cluster.dir, 'postmaster.pid'), 'utf8'), 10)
    return { url: cluster.url('postgres'), pid, stop: () => cluster.close() }
  } catch (error) {
    await cluster.close()
    throw error
  }
}
