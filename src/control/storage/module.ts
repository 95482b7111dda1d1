import { module } from '#core/api/module.ts'
import { initialSnapshots, snapshotHandler, snapshotSchedule } from './snapshot.ts'

export default module('storage', {
  handlers: [snapshotHandler],
  schedules: [snapshotSchedule],
  background: [initialSnapshots],
})
