import { addActivity, recordActivity } from '../../control/activity/record.ts'
import { srn } from '../../core/api/kind.ts'
import type { Outgoing } from '../../core/db/write.ts'
import type { Services } from '../../core/process/services.ts'

const SUMMARIES = {
  share_suspended: 'was suspended by its publisher',
  share_resumed: 'was resumed by its publisher',
  share_revoked: 'was revoked by its publisher',
} as const

/** The columns of a share that say what it is about. */
export type Shared = { id: string; project_id: string; resource_kind: string; resource_id: string }

const about = (share: Shared) => ({
  share_id: share.id,
  resource: srn(share.project_id, share.resource_kind, share.resource_id),
  publisher_project_id: share.project_id,
})

/** Tells the projects that use a share that it stopped or goes on. */
export function tellConsumers(
  outgoing: Outgoing,
  kind: keyof typeof SUMMARIES,
  share: Shared,
  projectIds: readonly string[],
): void {
  for (const project_id of projectIds)
    addActivity(outgoing, {
      project_id,
      kind,
      summary: `The share of ${share.resource_kind} ${share.resource_id} ${SUMMARIES[kind]}`,
      detail: about(share),
      ref_id: share.id,
    })
}

/** Notes a call that the cap of a share refused. */
export function noteRefused(
  services: Services,
  consumerId: string,
  share: Shared,
  cap: { calls: number; window: string },
): void {
  recordActivity(services, {
    project_id: consumerId,
    kind: 'share_cap_exceeded',
    summary: `The share of ${share.resource_kind} ${share.resource_id} allows no more calls in this window`,
    detail: { ...about(share), ...cap },
    ref_id: share.id,
  })
}
