import { srn } from '../../core/api/kind.ts'
import type { Outgoing } from '../../core/db/write.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { Services } from '../../core/process/services.ts'

/** An entry of a project's feed about a share that it accepted. */
export type ShareActivity = {
  project_id: string
  kind: 'share_suspended' | 'share_resumed' | 'share_revoked' | 'share_cap_exceeded'
  severity: 'info' | 'warning'
  summary: string
  detail: Record<string, unknown>
  ref_id: string
}

/** The feed of projects. Without one nothing is noted. */
export type ActivityFeed = {
  /** Notes it beside what happens; never throws. */
  record(services: Services, entry: ShareActivity): void
  /** Notes it with a change. */
  add(outgoing: Outgoing, entry: ShareActivity): void
}

export const activityFeed = extensionPoint<ActivityFeed>('activity of shares')

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
  const feed = activityFeed.only()
  for (const project_id of projectIds)
    feed?.add(outgoing, {
      project_id,
      kind,
      severity: kind === 'share_resumed' ? 'info' : 'warning',
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
  activityFeed.only()?.record(services, {
    project_id: consumerId,
    kind: 'share_cap_exceeded',
    severity: 'warning',
    summary: `The share of ${share.resource_kind} ${share.resource_id} allows no more calls in this window`,
    detail: { ...about(share), ...cap },
    ref_id: share.id,
  })
}
