import { z } from 'zod'
import type { Services } from '../base/services.ts'
import { sealedColumn } from '../db/sealed.ts'
import { idStatement, sql, voidStatement } from '../db/sql.ts'
import { CellRefusal, NO_KEY, sealedForCell } from './cell-directory.ts'

/** The moves of cells that have begun and not ended, which are recorded at home. */

export const sealedMoveUrls = sealedColumn({
  table: 'cell_moves',
  column: 'url',
  kind: 'cell',
  id: sql.fragment`cell`,
  project: sql.fragment`null::text`,
})

/** Schemas of the tables of a cell and of its queues. */
export type CellSchemas = { tables: string; queues: string }

const Layout = z.strictObject({ schemas: z.record(z.string(), z.string()), created: z.array(z.string()) })

/** Schemas of the tables in the target, by their names, and the schemas that the move has created there. */
export type TargetLayout = z.output<typeof Layout>

const MoveRow = z.strictObject({
  url: z.string(),
  state: z.enum(['open', 'closed']),
  tables_schema: z.string(),
  queues_schema: z.string(),
  fence: z.string(),
  layout: Layout,
})

/** A move that has begun: its target, the state of the cell before, and the source. */
export type CellMove = {
  cell: string
  url: string
  state: 'open' | 'closed'
  source: CellSchemas
  /** Suffix of the schemas at the source once it refuses writes. */
  fence: string
  layout: TargetLayout
}

type Home = Pick<Services, 'pool' | 'secrets'>

/**
 * Returns the move of a cell; null without one.
 * @throws CellRefusal if no configured key opens its URL
 */
export async function findMove({ pool, secrets }: Home, cell: string): Promise<CellMove | null> {
  const row = await pool.maybeOne(sql.type(MoveRow)`
    select url, state, tables_schema, queues_schema, fence, layout from cell_moves where cell = ${cell}`)
  if (!row) return null
  const url = secrets.open(row.url, sealedForCell(cell))
  if (!url.ok) throw new CellRefusal(`the move of cell ${cell} cannot be continued: ${NO_KEY}`)
  const { state, tables_schema, queues_schema, fence, layout } = row
  return { cell, url: url.value, state, source: { tables: tables_schema, queues: queues_schema }, fence, layout }
}

/** Records that a move begins. */
export const insertMove = (
  { pool, secrets }: Home,
  { cell, url, state, source, fence, layout }: CellMove,
): Promise<unknown> =>
  pool.query(voidStatement`
    insert into cell_moves (cell, url, state, tables_schema, queues_schema, fence, layout)
    values (${cell}, ${secrets.seal(url, sealedForCell(cell))}, ${state}, ${source.tables}, ${source.queues}, ${fence},
      ${JSON.stringify(layout)}::jsonb)`)

/**
 * Makes a cell take no requests, and records its state before.
 * @throws CellRefusal if it is neither open nor closed
 */
export async function beginPause({ pool }: Pick<Services, 'pool'>, cell: string): Promise<void> {
  const paused = await pool.maybeOneFirst(idStatement`
    with before as (select name, state from cells where name = ${cell} and state in ('open', 'closed') for update),
      recorded as (update cell_moves m set state = b.state from before b where m.cell = b.name)
    update cells c set state = 'moving', updated_at = now() from before b where c.name = b.name returning c.name as id`)
  if (paused === null) throw new CellRefusal(`cell ${cell} is neither open nor closed`)
}

/** Ends a move, whether at its target or, without `url`, at its source: the cell has its state of before. */
export const endMove = ({ pool, secrets }: Home, cell: string, url?: string): Promise<void> =>
  pool.transaction(async tx => {
    const sealed = url === undefined ? null : secrets.seal(url, sealedForCell(cell))
    await tx.query(voidStatement`
      update cells c set url = coalesce(${sealed}, c.url), updated_at = now(),
        state = case c.state when 'moving' then m.state else c.state end
      from cell_moves m where c.name = ${cell} and m.cell = c.name`)
    const { rowCount } = await tx.query(voidStatement`delete from cell_moves where cell = ${cell}`)
    if (rowCount === 0) throw new CellRefusal(`another command has ended the move of cell ${cell}`)
  })
