import type { Queryable } from '../../core/db/sql.ts'
import { extensionPoint } from '../../core/declarations.ts'

/** One billable use as the module that caused it measured it; usage metering prices and stores it. */
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

/** Modules that store usage. */
export const meters = extensionPoint<Meter>('meters')

/** Passes usage to metering, if a module does any. The caller logs a metering error, which never fails its work. */
export async function recordUsage(db: Queryable, drafts: UsageDraft[]): Promise<void> {
  if (drafts.length > 0) for (const made of meters.all()) await made(db, drafts)
}
