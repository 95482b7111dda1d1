import pg from 'pg'

/**
 * Lets the results of pg die young. Asked for a promise, pg gives a query its callback after the query was made, and all
 * that such a query answers survives every collection of the young heap: in Node 24 results then lie about until a full
 * collection, and nine in ten full collections of a process that searched were due to it. Nothing we know of refers to
 * them; with a callback that is there from the start they are collected. Importing this file makes every client of the
 * process ask that way; test/core/db.test.ts measures it.
 */
const { query } = pg.Client.prototype as unknown as { query: (...args: unknown[]) => unknown }

function queryWithCallback(this: pg.Client, config: unknown, values?: unknown, callback?: unknown): unknown {
  const isSubmitted = typeof (config as { submit?: unknown } | null)?.submit === 'function'
  if (isSubmitted || typeof values === 'function' || callback) return query.call(this, config, values, callback)
  return new Promise((resolve, reject) => {
    query.call(this, config, values, (error: Error | null, result: unknown) =>
      error ? reject(error) : resolve(result),
    )
  }).catch(error => {
    // As pg does: the stack of who asked, not of the socket.
    Error.captureStackTrace(error)
    throw error
  })
}

Object.assign(pg.Client.prototype, { query: queryWithCallback })
