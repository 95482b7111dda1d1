import { module } from '#core/modules/module.ts'
import { initialSnapshots, snapshotHandler, snapshotSchedule } from './snapshot.ts'

export default module('storage', {
  handlers: [snapshotHandler],
  schedules: [snapshotSchedule],
  background: [initialSnapshots],
})
