import { z } from 'zod'
import type { Across, SharedRead } from '../api/across.ts'
import { identifyOnce } from '../api/call.ts'
import { booleanQuery, type PageBody } from '../api/lists.ts'
import type { Context, Operation, OperationResult } from '../api/operation.ts'
import { parse } from '../api/validate.ts'
import { raiseInvalid } from '../base/errors.ts'
import { type Cell, raiseUnavailable, requireCell, unavailableCellName } from '../services/cell.ts'
import type { Cells } from '../services/cells.ts'
import { type Invocation, openInvocation } from './invocation.ts'
import { MergeOrder, mergedPage } from './merged-lists.ts'

/**
 * Reads of all cells, for calls without a project. The call runs in the first cell, which alone checks caller and input; its
 * `run` reads the other cells and makes one response.
 */

/** Position of the first row of a page. Each cell is read from a position that takes several statements to find. */
const MAX_OFFSET = 10_000

type Execute = (inv: Invocation) => Promise<OperationResult>

type RunContext = Context<never, never, never, never>

/** Reads something of a cell in the context of a call. */
type CellRead = <T>(cell: Cell, read: (context: RunContext) => Promise<T>) => Promise<T>

const PartialQuery = z.looseObject({ partial: booleanQuery.optional() })

/** Executes a read in all cells. Raises CELL_UNAVAILABLE if one of them does not answer, unless the call accepts a part. */
export async function executeEverywhere(inv: Invocation, cells: Cells, execute: Execute): Promise<OperationResult> {
  const { operation, call, services } = inv
  const run = async (context: RunContext): Promise<unknown> => {
    const { partial = false } = parse(PartialQuery, call.query)
    const { caller } = context as Context
    const readCell: CellRead = (cell, read) =>
      cell.number === 0
        ? raiseUnavailable(cell, () => read(context))
        : readOtherCell(
            cell,
            { ...inv, call: { ...call, identify: identifyOnce(caller, call.identify) } },
            execute,
            read,
          )
    return withoutMissing(cells.all(), partial, each => readAll(operation, context, each, readCell))
  }
  const first = openInvocation(services, { ...operation, run }, call)
  try {
    return await execute(first)
  } finally {
    inv.caller = first.caller
  }
}

/** Returns the response of a read of cells. */
async function readAll(
  { across, run, pageSize }: Operation,
  context: RunContext,
  cells: readonly Cell[],
  readCell: CellRead,
): Promise<object> {
  const declared = across as Across
  if ('order' in declared) {
    const { services, page } = context as Context
    if (page.offset > MAX_OFFSET)
      raiseInvalid({
        code: 'TOO_BIG',
        path: 'offset',
        message: `must be at most ${MAX_OFFSET} without a project in a deployment with several cells`,
      })
    const lists = cells.map(
      cell => (bounds: { limit: number; offset: number }) =>
        readCell(cell, each => run({ ...each, page: { ...each.page, ...bounds } }) as Promise<PageBody<any>>),
    )
    return mergedPage(lists, new MergeOrder(declared.order, services.pool), page, pageSize.max)
  }
  const { read, present } = declared as SharedRead
  const facts = await Promise.all(cells.map(cell => readCell(cell, each => read(each as never))))
  return (await present(facts, context as never)) as object
}

/** Reads something of a cell besides the first, in a call that is authorized and limited there as in the first. */
async function readOtherCell<T>(
  cell: Cell,
  { operation, call }: Invocation,
  execute: Execute,
  read: (context: RunContext) => Promise<T>,
): Promise<T> {
  const services = requireCell(cell)
  const { body } = await execute(openInvocation(services, { ...operation, run: read }, call))
  return body as T
}

/** Reads cells; without those that are not available, if the call accepts a part, which the response then names. */
async function withoutMissing(
  cells: readonly Cell[],
  isPartial: boolean,
  read: (cells: readonly Cell[]) => Promise<object>,
): Promise<object> {
  const missing: string[] = []
  for (;;) {
    const rest = cells.filter(({ name }) => !missing.includes(name))
    try {
      const body = await read(rest)
      return missing.length > 0 ? { ...body, meta: { missing_cells: missing } } : body
    } catch (error) {
      const name = unavailableCellName(error)
      if (!isPartial || name === null || rest.length === 1) throw error
      missing.push(name)
    }
  }
}
