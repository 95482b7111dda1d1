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

/**
 * Returns the driver of a Slonik pool: connections are DatabaseClients with this configuration, times are ISO text, bigint
 * and numeric numbers.
 */
export const databaseDriver = (config: pg.ClientConfig) =>
  createDriverFactory(async () => ({
    async createPoolClient({ clientEventEmitter }) {
      const client = new DatabaseClient({
        ...config,
        types: { getTypeParser: oid => parsers.get(oid) ?? getTypeParser(oid) },
      })
      client.on('error', error => clientEventEmitter.emit('error', toSlonikError(error)))
      return {
        connect: () => client.connect(),
        end: () => client.end(),
        async query(text, values, options): Promise<DriverQueryResult> {
          try {
            const { command, fields, rowCount, rows } = await client.query({ ...options, text, values })
            const described = fields.map(({ dataTypeID, name }: pg.FieldDef) => ({ dataTypeId: dataTypeID, name }))
            return { command, fields: described, rowCount, rows }
          } catch (error) {
            throw toSlonikError(error as Error)
          }
        },
        stream() {
          throw new Error('statements are not streamed')
        },
      }
    },
  }))
