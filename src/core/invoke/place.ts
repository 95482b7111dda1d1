import { z } from 'zod'
import { isAcross } from '../api/across.ts'
import { type Call, identifyOnce } from '../api/call.ts'
import type { Operation } from '../api/operation.ts'
import { raiseInvalid } from '../base/errors.ts'
import { isId } from '../base/ids.ts'
import type { Services } from '../base/services.ts'
import { sql } from '../db/sql.ts'
import { isAdmin } from '../iam/caller.ts'
import { sha256Of } from '../secrets/digest.ts'
import type { Cell } from '../services/cell.ts'
import type { Cells } from '../services/cells.ts'
import { type Invocation, openInvocation } from './invocation.ts'
import { peekProject } from './upload-project.ts'

/**
 * Chooses the cell of a call in a deployment with several: by the project of the credential or of the request, or by the IDs in
 * it, which contain the number of the cell that made them; it is queried for the item if projects have left it. Users, policies
 * and OAuth are in the first cell. A read that declares how it goes `across` cells is read in all without a project. A call waits
 * while its cell is moved.
 */

/** Kinds with rows at home that have a project. */
const AT_HOME: ReadonlySet<string> = new Set(['oauth_grant'])

/** Whether the rows of an operation are at home, whatever their IDs. */
const isAtHome = ({ kind, across }: Operation): boolean =>
  !!kind && !isAcross(across) && (kind.global || AT_HOME.has(kind.name))

/**
 * Whether the item of an operation is found by its ID, in the cells that may have it if projects have left the cell that made the
 * ID.
 */
export const isFoundById = (operation: Operation): boolean =>
  operation.param !== null && operation.kind?.name !== 'project' && !isAtHome(operation)

/** Opens the invocation of a call in its cell. */
export const openPlaced = (services: Services, operation: Operation, call: Call): Invocation | Promise<Invocation> =>
  services.cells && !call.tx
    ? services.cells.afterMoves(() => place(services.cells as Cells, operation, call))
    : openInvocation(services, operation, call)

async function place(cells: Cells, operation: Operation, call: Call): Promise<Invocation> {
  if (operation.gate === 'public' || (operation.pass && call.query.token !== undefined))
    return openInvocation(await byParams(cells, call), operation, call)
  const caller = await call.identify()
  const known = caller ? { ...call, identify: identifyOnce(caller, call.identify) } : call
  const open = (services: Services) => openInvocation(services, operation, known)
  if (!caller) return open(cells.home)
  if (caller.project_id !== null) return open(cells.ofProject(caller.project_id))
  const { kind, shape, param, across } = operation
  if (isAtHome(operation)) return open(cells.home)
  if (param !== null && kind?.name === 'project') return open(cells.ofProject(call.params[param]))
  const isOfItem = Object.values(call.params).some(isId) && !isAcross(across)
  // A project in the request of an item may be a value that it gets, unless it uses the item of another project.
  if (isOfItem && !operation.granted) return open(await byParams(cells, call))
  const body = (call.body ?? {}) as Record<string, unknown>
  const { project_id: requested } = call.query
  const inBody =
    operation.receive && call.upload && requested === undefined ? await peekProject(call.upload) : body.project_id
  const project = requested ?? inBody ?? null
  if (typeof project === 'string') return open(cells.ofProject(project))
  if (isOfItem) return open(await byParams(cells, call))
  if (shape === 'create' && kind?.name === 'project')
    return open(isAdmin(caller) ? await cellOfNewProject(cells, call, body.cell) : cells.home)
  if (isAcross(across)) {
    await cells.untilMoved()
    return { ...open(cells.home), everywhere: cells }
  }
  if (across)
    raiseInvalid({ code: 'REQUIRED', path: 'project_id', message: 'is required in a deployment with several cells' })
  const { under } = operation
  return open(await cells.holding(under ? [body[under.field]] : [call.query, body].flatMap(valuesOf)))
}

/** Returns the cell of the first ID or token in the path. */
const byParams = (cells: Cells, { params }: Call) => cells.holding(Object.values(params), { tokens: true })

/** Returns the values of fields, and of the fields of objects in lists. */
const valuesOf = (body: object): unknown[] =>
  Object.values(body)
    .flat()
    .flatMap(value => (typeof value === 'object' && value !== null ? Object.values(value) : value))

const rowCount = sql.type(z.strictObject({ rows: z.int() }))

/**
 * Returns the cell of a new project: the given one, else an open one. A repeat with the same Idempotency-Key goes to the same
 * cell, as long as no cell is added or closed; other projects go to the cell with the fewest rows.
 */
async function cellOfNewProject(cells: Cells, { idempotencyKey }: Call, name: unknown): Promise<Services> {
  if (typeof name === 'string') {
    const cell = cells.named(name) ?? raiseInvalid({ code: 'INVALID_VALUE', path: 'cell', message: 'must be a cell' })
    if (cell.state === 'closed')
      raiseInvalid({ code: 'INVALID_VALUE', path: 'cell', message: 'must be a cell that takes new projects' })
    return cells.numbered(cell.number)
  }
  const open = cells.all().filter(({ state }) => state === 'open')
  const ranked = await Promise.all(open.map(async cell => ({ cell, rank: await rankOf(cell, idempotencyKey) })))
  const { cell } = ranked.reduce((least, each) => (each.rank < least.rank ? each : least))
  return cells.numbered(cell.number)
}

/**
 * Returns the rank of a cell for a new project, of which the lowest is taken: by the key, whether or not the cell answers, else
 * by its rows, without cells that do not answer.
 */
async function rankOf({ name, services }: Cell, key: string | undefined): Promise<number> {
  if (key !== undefined) return sha256Of(`${name} ${key}`).readUInt32BE()
  const found = await services?.pool
    .one(rowCount`
      select coalesce(sum(n_live_tup), 0)::bigint as rows from pg_stat_user_tables where schemaname = current_schema()`)
    .catch(() => null)
  return found?.rows ?? Number.POSITIVE_INFINITY
}
