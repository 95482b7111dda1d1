import pg from 'pg'
import {
  BackendTerminatedError,
  BackendTerminatedUnexpectedlyError,
  createDriverFactory,
  type DriverQueryResult,
  ForeignKeyIntegrityConstraintViolationError,
  IdleTransactionTimeoutError,
  NotNullIntegrityConstraintViolationError,
  StatementCancelledError,
  StatementTimeoutError,
  UniqueIntegrityConstraintViolationError,
} from 'slonik'
import { parseExactJson } from '../base/exact-json.ts'
import { coalescedReads } from './coalesced-reads.ts'
import { isInTransaction } from './commit-piggyback.ts'
import { CellTablesGoneError, DatabaseUnresponsiveError, isObjectMissing } from './database-errors.ts'
import { DatabaseClient } from './pg-client.ts'

/** Converts `2026-11-21 09:00:05.123+00` to `2026-11-21T09:00:05.123Z`, the format of the API. */
function toIsoTime(value: string): string {
  if (value.endsWith('+00')) {
    const fraction = value.slice(20, -3)
    return `${value.slice(0, 10)}T${value.slice(11, 19)}.${fraction.padEnd(3, '0').slice(0, 3)}Z`
  }
  return new Date(value).toISOString()
}

const { builtins, getTypeParser } = pg.types
/** Its declared type is a function. */
const arrayParser = pg.types.arrayParser as unknown as {
  create<T>(text: string, parse: (value: string) => T): { parse(): T[] }
}

/** Types with other parsers than pg has: OID, OID of the array type, parser. */
const TYPES: readonly [oid: number, arrayOid: number, parse: (value: string) => unknown][] = [
  [builtins.TIMESTAMPTZ, 1185, toIsoTime],
  [builtins.INT8, 1016, Number],
  [builtins.NUMERIC, 1231, Number],
  [builtins.DATE, 1182, value => value],
  [builtins.JSON, 199, parseExactJson],
  [builtins.JSONB, 3807, parseExactJson],
]

const parsers = new Map(
  TYPES.flatMap(([oid, arrayOid, parse]) => [
    [oid, parse] as const,
    [arrayOid, (text: string) => arrayParser.create(text, parse).parse()] as const,
  ]),
)

/** Classes of Slonik by SQLSTATE; the driver has to throw them. */
const ERRORS: Record<string, new (error: Error) => Error> = {
  '23502': NotNullIntegrityConstraintViolationError,
  '23503': ForeignKeyIntegrityConstraintViolationError,
  '23505': UniqueIntegrityConstraintViolationError,
  '25P03': IdleTransactionTimeoutError,
  '57014': StatementTimeoutError,
  '57P01': BackendTerminatedError,
}

function toSlonikError(error: Error & { code?: string }): Error {
  const message = error.message.toLowerCase()
  if (message.includes('connection terminated unexpectedly')) return new BackendTerminatedUnexpectedlyError(error)
  if (message.includes('connection terminated')) return new BackendTerminatedError(error)
  if (message.includes('canceling statement due to user request')) return new StatementCancelledError(error)
  const Mapped = ERRORS[error.code ?? '']
  return Mapped ? new Mapped(error) : error
}

/** Attempts to open a connection while they fail immediately, for example because a proxy restarts. */
const MAX_ATTEMPTS = 3
/** Time after which an attempt that failed was not answered at all. */
const UNANSWERED_MS = 1000

/**
 * Returns the driver of a Slonik pool: connections are DatabaseClients with this configuration, times are ISO text, bigint
 * and numeric numbers, and numbers of JSON keep their digits.
 *
 * While nothing answers new connections, one attempt at a time finds out when that ends, and the others fail immediately:
 * requests would otherwise wait for the whole timeout of one attempt after another.
 * @param options.mayMove whether the tables may be moved to another database while the pool is open
 */
export const databaseDriver = (config: pg.ClientConfig, { mayMove = false } = {}) =>
  createDriverFactory(async () => {
    let connecting = 0
    let isUnanswered = false
    const connect = async (client: DatabaseClient): Promise<void> => {
      if (isUnanswered && connecting > 0) throw new DatabaseUnresponsiveError()
      const startedAt = performance.now()
      connecting++
      try {
        await client.connect()
        isUnanswered = false
      } catch (error) {
        isUnanswered = performance.now() - startedAt > UNANSWERED_MS
        throw error
      } finally {
        connecting--
      }
    }
    const coalesced = coalescedReads<boolean>()
    /** Whether the tables have been moved: otherwise a missing object is a fault of this program. */
    const readIsMoved = async () => {
      const session = new DatabaseClient(config)
      session.on('error', () => {})
      try {
        await session.connect()
        return (await session.query(`select to_regclass('migrations') is null as moved`)).rows[0].moved as boolean
      } finally {
        await session.end().catch(() => {})
      }
    }
    return {
      async createPoolClient({ clientEventEmitter }) {
        let isAcquired = false
        const open = (): DatabaseClient => {
          const opened = new DatabaseClient({
            ...config,
            types: { getTypeParser: oid => parsers.get(oid) ?? getTypeParser(oid) },
          })
          opened.onLeave(endIfUnused)
          return opened.on('error', error => {
            if (opened === client) clientEventEmitter.emit('error', toSlonikError(error))
          })
        }
        // Later, because the pool may give a released connection to work that waits: its first statement replaces it.
        const endIfUnused = () =>
          setImmediate(() => {
            if (client.leaving && !isAcquired) client.destroy(client.leaving)
          })
        let client: DatabaseClient = open()
        clientEventEmitter.on('acquire', () => {
          isAcquired = true
        })
        clientEventEmitter.on('release', () => {
          isAcquired = false
          if (client.leaving) endIfUnused()
        })
        /** Opens another connection in place of a connection that leaves its server. */
        const replace = async (): Promise<void> => {
          const previous = client
          client = open()
          previous.destroy()
          await connect(client)
        }
        return {
          async connect() {
            for (let attempt = 1; ; attempt++) {
              try {
                return await connect(client)
              } catch (error) {
                if (isUnanswered || attempt === MAX_ATTEMPTS) throw error
                client = open()
              }
            }
          },
          end: () => client.end(),
          async query(text, values, options): Promise<DriverQueryResult> {
            if (client.leaving && !isInTransaction(client)) await replace()
            try {
              const { command, fields, rowCount, rows } = await client.query({ ...options, text, values })
              const described = fields.map(({ dataTypeID, name }: pg.FieldDef) => ({ dataTypeId: dataTypeID, name }))
              return { command, fields: described, rowCount, rows }
            } catch (error) {
              const mapped = toSlonikError(error as Error)
              // Slonik does not roll back, as the session has ended: the connection must not be used again.
              if (mapped instanceof BackendTerminatedError) client.destroy()
              if (mayMove && isObjectMissing(mapped) && (await coalesced('moved', readIsMoved).catch(() => true)))
                throw new CellTablesGoneError(mapped)
              throw mapped
            }
          },
          stream() {
            throw new Error('statements are not streamed')
          },
        }
      },
    }
  })
