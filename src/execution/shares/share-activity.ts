import { recordActivityInTx, recordActivityLater } from '../../control/activity/record.ts'
import { srn } from '../../core/api/kind.ts'
import type { Outbox } from '../../core/db/writer.ts'
import type { Services } from '../../core/process/services.ts'

const SUMMARIES = {
  share_suspended: 'was suspended by its publisher',
  share_resumed: 'was resumed by its publisher',
  share_revoked: 'was revoked by its publisher',
} as const

/** The columns of a share that say what it is about. */
export type SharedCall = { id: string; project_id: string; resource_kind: string; resource_id: string }

const about = (share: SharedCall) => ({
  share_id: share.id,
  resource: srn(share.project_id, share.resource_kind, share.resource_id),
  publisher_project_id: share.project_id,
})

/** Tells the projects that use a share that it stopped or goes on. */
export function notifyConsumers(
  outgoing: Outbox,
  kind: keyof typeof SUMMARIES,
  share: SharedCall,
  projectIds: readonly string[],
): void {
  for (const project_id of projectIds)
    recordActivityInTx(outgoing, {
      project_id,
      kind,
      summary: `The share of ${share.resource_kind} ${share.resource_id} ${SUMMARIES[kind]}`,
      detail: about(share),
      ref_id: share.id,
    })
}

/** Notes a call that the cap of a share refused. */
export function recordCapRefusal(
  services: Services,
  consumerId: string,
  share: SharedCall,
  cap: { calls: number; window: string },
): void {
  recordActivityLater(services, {
    project_id: consumerId,
    kind: 'share_cap_exceeded',
    summary: `The share of ${share.resource_kind} ${share.resource_id} allows no more calls in this window`,
    detail: { ...about(share), ...cap },
    ref_id: share.id,
  })
}
