import { z } from 'zod'
import type { CellRead } from '../base/metrics.ts'
import type { Services } from '../base/services.ts'
import { type Queryable, sql } from '../db/sql.ts'
import { requireCell } from './cells.ts'

/** Returns a read of each cell, for gauges; without a label in a deployment without cells. */
export function readsOfCells<T>(
  services: Services,
  read: (services: Services) => Promise<readonly T[]>,
): readonly CellRead<T>[] {
  if (!services.cells) return [{ read: () => read(services) }]
  return services.cells.served().map(cell => ({ cell: cell.name, read: async () => read(requireCell(cell)) }))
}

const CellFacts = z.strictObject({
  projects: z.int(),
  bytes: z.int(),
  migrations: z.int(),
  release: z.string().nullable(),
})

/** Size of a cell, and the last release that migrated it. */
export type CellFacts = z.output<typeof CellFacts>

/** Reads the size of a cell. The bytes include indexes, and the tables of pg-boss. */
export const readCellFacts = (db: Queryable): Promise<CellFacts> =>
  db.one(sql.type(CellFacts)`
    select (select count(*)::int from projects) as projects,
      (select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint from pg_class where relkind = 'r'
        and relnamespace in (current_schema()::regnamespace,
          (select relnamespace from pg_class where oid = to_regclass('pgboss.queue')))) as bytes,
      (select count(*)::int from migrations) as migrations,
      (select to_jsonb(m) ->> 'release' from migrations m order by id desc limit 1) as release`)
