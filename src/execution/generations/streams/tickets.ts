import { randomBytes } from 'node:crypto'
import { z } from 'zod'
import { type EndUserAccess, endUserView } from '#core/api/end-user.ts'
import type { Kind } from '#core/api/kind.ts'
import { type Context, itemOperation, type Operation } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { sealedColumn } from '#core/db/sealed.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { sha256Of } from '#core/secrets/digest.ts'

/** Tickets with which clients that cannot send headers open a stream. */

const TTL_MS = 60_000
const TICKET = /^stk_[\w-]{43}$/
const BEARER = /^bearer +(\S+) *$/i

export const StreamQuery = z.object({
  ticket: z.string().optional().describe('Ticket for this stream, in place of a credential'),
  last_event_id: z.string().optional().describe('ID of the last received event, in place of the Last-Event-ID header'),
})

/** Query parameters of a stream that an end user may send. */
export const STREAM_PARAMETERS = Object.keys(StreamQuery.shape)

/** Returns the number of the last event that the client has received; null if it has none. */
export function streamPosition({
  request,
  query,
}: Pick<Context<z.output<typeof StreamQuery>>, 'request' | 'query'>): number | null {
  const id = request.headers['last-event-id'] ?? query.last_event_id
  return typeof id === 'string' && /^\d{1,15}$/.test(id) ? Number(id) : null
}

const StreamTicket = z
  .object({
    ticket: z.string().describe('Ticket for one request of the stream. Shown only in this response.'),
    expires_at: z.iso.datetime().describe('Time until which the stream must be opened'),
  })
  .meta({ id: 'StreamTicket' })

const sealedFor = (hash: Buffer, project_id: string) => ({
  kind: 'stream_ticket',
  id: hash.toString('hex'),
  project_id,
})

export const sealedTickets = sealedColumn({
  table: 'stream_tickets',
  column: 'sealed',
  kind: 'stream_ticket',
  id: sql.fragment`encode(hash, 'hex')`,
})

const ticketRow = sql.type(
  z.object({ target_id: z.string(), project_id: z.string(), sealed: z.string(), expires_at: z.string() }),
)

/**
 * Consumes a ticket and returns the credential that it stands for; null if it is unknown, used, expired, or for another
 * stream.
 */
export async function consumeStreamTicket(
  services: Services,
  ticket: string,
  targetId: string,
): Promise<string | null> {
  if (!TICKET.test(ticket)) return null
  const hash = sha256Of(ticket)
  const row = await services.pool.maybeOne(ticketRow`
    delete from stream_tickets where hash = ${sql.binary(hash)}
    returning target_id, project_id, sealed, expires_at`)
  if (!row || row.target_id !== targetId || new Date(row.expires_at) <= services.clock.now()) return null
  const opened = services.secrets.open(row.sealed, sealedFor(hash, row.project_id))
  return opened.ok ? opened.value : null
}

/** Declares the operation that creates a ticket for the stream of an item, for callers that may open the stream. */
export const ticketOperation = <Row extends { id: string; project_id: string | null }>(
  kind: Kind<Row, any>,
  declaration: Pick<Operation, 'id' | 'command' | 'path' | 'summary' | 'tag'> & {
    action: string
    endUser: EndUserAccess<Row>
  },
): Operation =>
  itemOperation(kind, {
    ...declaration,
    endUser: { ...declaration.endUser, view: endUserView(['ticket', 'expires_at']) },
    method: 'post',
    description:
      'Returns a ticket that opens the stream once within 60 seconds, with the permissions of the credential of this request: for EventSource, which cannot send headers.',
    answers: { 201: StreamTicket },
    secretAnswer: true,
    internal: true,
    async run({ services, tx, request, resource }) {
      const bearer = BEARER.exec(request.headers.authorization ?? '')?.[1]
      if (bearer === undefined)
        return raise('FORBIDDEN', { message: 'A token that is bound to a key of the client cannot create a ticket' })
      const ticket = `stk_${randomBytes(32).toString('base64url')}`
      const hash = sha256Of(ticket)
      const project_id = resource.project_id as string
      const expires_at = new Date(services.clock.now().getTime() + TTL_MS).toISOString()
      const sealed = services.secrets.seal(bearer, sealedFor(hash, project_id))
      await tx.query(voidStatement`
        insert into stream_tickets (hash, project_id, target_id, sealed, expires_at)
        values (${sql.binary(hash)}, ${project_id}, ${resource.id}, ${sealed}, ${expires_at})`)
      return { ticket, expires_at }
    },
  })

/** Deletes up to `limit` expired tickets and returns their number. By stream_tickets_expires. */
export const deleteExpiredTickets = async (db: Queryable, now: Date, limit: number): Promise<number> =>
  (
    await db.query(voidStatement`
      delete from stream_tickets where ctid = any (array(
        select ctid from stream_tickets where expires_at < ${now.toISOString()}::timestamptz
        order by expires_at limit ${limit}))`)
  ).rowCount
