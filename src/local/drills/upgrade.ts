import fs from 'node:fs'
import path from 'node:path'
import { CHECKOUT, type Deployment, query } from './deployment.ts'
import { type Drill, NotPossibleError } from './drill.ts'

/** The release before this one. Its sources are packed, because a clone may have neither history nor tags. */
export const PREVIOUS = '0.1.0'
const PACKED = path.join(CHECKOUT, `test/releases/${PREVIOUS}.tar.gz`)
const GRACE_MS = '60000'
/** Work of each kind that is acknowledged in each state of the deployment. */
const PER_STATE = 2

/** Where the release before is unpacked. */
const unpacked = (deployment: Deployment): string => path.join(deployment.files, PREVIOUS)

/** Upgrades from the release before to this one process by process, and back. */
export const upgrade: Drill = {
  name: 'upgrade',
  summary: `upgrades from ${PREVIOUS} to this release process by process, and back`,
  seconds: 60,
  // With a denser load a request may be the victim of a deadlock with the locks of a migration, and is answered 503.
  pauseMs: 1500,
  promises: ['available', 'stops-cleanly'],
  env: { SHUTDOWN_GRACE_MS: GRACE_MS, ORCHESTRATION_SHUTDOWN_GRACE_MS: GRACE_MS },
  requires() {
    if (!fs.existsSync(PACKED))
      throw new NotPossibleError(`upgrade needs the packed sources of ${PREVIOUS}, which only a checkout has`)
  },
  async startProcesses(deployment) {
    const directory = unpacked(deployment)
    fs.mkdirSync(directory)
    await deployment.run('tar', ['-xzf', PACKED, '-C', directory])
    // The release before runs with the packages of this one.
    fs.symlinkSync(path.join(CHECKOUT, 'node_modules'), path.join(directory, 'node_modules'))
    await deployment.command(['migrate'], directory)
    // As docs/operations.md says: connections of the release before do not set it.
    const database = new URL(deployment.databaseUrl).pathname.slice(1)
    await query(deployment.databaseUrl, `alter database "${database}" set enable_partition_pruning = off`)
    await deployment.startAll({ web: 2, worker: 2 }, directory)
  },
  // The sums that 0.1.0 writes lack the priced part, which `muster reprocess usage` adds after an upgrade.
  omitsUsageSums: true,
  async break({ deployment, load, note }) {
    await load.progress(PER_STATE)
    await deployment.command(['migrate'])
    note('the database is migrated')
    await load.progress(PER_STATE)
    for (const [release, directory] of [
      ['this release', CHECKOUT],
      [PREVIOUS, unpacked(deployment)],
    ])
      for (const kind of ['worker', 'web', 'worker', 'web'] as const) {
        await deployment.replace(kind, directory)
        note(`${kind} of ${release}`)
        await load.progress(PER_STATE)
      }
  },
}
