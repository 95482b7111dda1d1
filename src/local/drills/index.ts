import type { Drill } from './drill.ts'
import { failover } from './failover.ts'
import { fullDisk } from './full-disk.ts'
import { kill } from './kill.ts'
import type { DrillName } from './names.ts'
import { receiverDown } from './receiver-down.ts'
import { restore } from './restore.ts'
import { rolling } from './rolling.ts'
import { upgrade } from './upgrade.ts'
import { vendorDown } from './vendor-down.ts'

export const DRILLS: Record<DrillName, Drill> = {
  kill,
  'receiver-down': receiverDown,
  'vendor-down': vendorDown,
  rolling,
  restore,
  upgrade,
  failover,
  'full-disk': fullDisk,
}
