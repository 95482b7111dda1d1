import type { CaseRow } from '#automation/cases/model.ts'
import type { Services } from '#core/base/services.ts'
import { isolateFailures } from '#core/work/sweeps.ts'
import type { Tx } from '#core/writes/writer.ts'
import { exportKind, removeFiles } from './model.ts'
import { listExpiredExports, lockCaseExports } from './store.ts'

/** Deletes the exports of a case that is about to be deleted. */
export async function removeCaseExports(tx: Tx, { id }: CaseRow): Promise<void> {
  for (const row of await lockCaseExports(tx, id)) await exportKind.remove?.(tx, row)
}

const BATCH = 200

/** Removes the files of expired exports. Returns the number of exports. */
export async function expireExports(services: Services, stopping: AbortSignal): Promise<number> {
  let expired = 0
  for (let ids: readonly string[] | null = null; !ids || ids.length === BATCH; ) {
    ids = await listExpiredExports(services.pool, services.clock.now(), ids?.at(-1) ?? '', BATCH)
    for (const id of ids) {
      if (stopping.aborted) return expired
      await isolateFailures(services, { export_id: id }, () =>
        services.write(async tx => {
          const row = await exportKind.find(tx, id, true)
          if (row?.status !== 'completed') return
          await removeFiles(tx, row)
          await exportKind.update(tx, id, { status: 'expired', files: [] })
          expired++
        }),
      )
    }
  }
  return expired
}
