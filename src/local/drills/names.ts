/** Names of the drills. A separate file, because the command line starts without their programs. */
export const DRILL_NAMES = [
  'kill',
  'receiver-down',
  'vendor-down',
  'rolling',
  'restore',
  'upgrade',
  'failover',
  'full-disk',
] as const

export type DrillName = (typeof DRILL_NAMES)[number]
