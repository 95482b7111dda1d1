import type { Queryable } from '../../core/db/sql.ts'
import { extensionPoint } from '../../core/declarations.ts'

/** One billable occurrence as its part measured it (control, 4.1); it is priced and stored by usage metering. */
export type UsageDraft = {
  /** A repeat with the same key writes nothing. */
  idempotency_key: string
  project_id: string
  meter_type: 'llm_tokens' | 'compute_execution' | 'tool_execution' | 'api_request' | 'storage'
  provider: string
  model: string
  source: string | null
  components: { component: string; quantity: number; unit: string; billable: boolean }[]
}

/** Writes usage within the work's own transaction. */
export type Meter = (db: Queryable, drafts: UsageDraft[]) => Promise<void>

/** Who stores usage. */
export const meters = extensionPoint<Meter>('meters')

/** Hands usage to metering; nothing without any. A metering error is the caller's to log: it never fails the work. */
export async function recordUsage(db: Queryable, drafts: UsageDraft[]): Promise<void> {
  if (drafts.length > 0) for (const made of meters.all()) await made(db, drafts)
}
