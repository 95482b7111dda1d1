/** Loads every module, so that every queue and every encrypted column is declared. */
import '../../jobs/worker.ts'
import '../api.ts'
