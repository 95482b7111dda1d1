import { recordActivityInTx, recordActivityLater } from '#control/activity/record.ts'
import { srn } from '#core/api/kind.ts'
import type { Services } from '#core/base/services.ts'
import type { Outbox } from '#core/writes/writer.ts'

const SUMMARIES = {
  share_suspended: 'was suspended by its publisher',
  share_resumed: 'was resumed by its publisher',
  share_revoked: 'was revoked by its publisher',
} as const

/** Columns of a share that identify it and its resource. */
export type SharedCall = { id: string; project_id: string; resource_kind: string; resource_id: string }

const shareDetail = (share: SharedCall) => ({
  share_id: share.id,
  resource: srn(share.project_id, share.resource_kind, share.resource_id),
  publisher_project_id: share.project_id,
})

/** Records the suspension, resumption or revocation of a share in the activity of the projects that use it. */
export function notifyConsumers(
  outbox: Outbox,
  kind: keyof typeof SUMMARIES,
  share: SharedCall,
  projectIds: readonly string[],
): void {
  for (const project_id of projectIds)
    recordActivityInTx(outbox, {
      project_id,
      kind,
      summary: `Share of ${share.resource_kind} ${share.resource_id} ${SUMMARIES[kind]}`,
      detail: shareDetail(share),
      ref_id: share.id,
    })
}

/** Records a call that the cap of a share refused. */
export function recordCapRefusal(
  services: Services,
  consumerId: string,
  share: SharedCall,
  cap: { calls: number; window: string },
): void {
  recordActivityLater(services, {
    project_id: consumerId,
    kind: 'share_cap_exceeded',
    summary: `Share of ${share.resource_kind} ${share.resource_id} reached its call limit for the current window`,
    detail: { ...shareDetail(share), ...cap },
    ref_id: share.id,
  })
}
