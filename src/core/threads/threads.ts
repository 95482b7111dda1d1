import { sharedSingleton } from '../base/process-singleton.ts'
import { ThreadPool } from './pool.ts'

/** Threads of a process for work on data of callers that takes long. */
export const threads = sharedSingleton(
  ({ config, log }) => new ThreadPool({ threads: config.SCHEMA_THREADS, log }),
  pool => pool.close(),
)
