/** Names of the drills and their profiles. A separate file, because the command line starts without their programs. */
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

/** `short` takes at most three minutes on two idle cores; `nightly` loads the deployment ten times as long. */
export const PROFILES = ['short', 'nightly'] as const

export type Profile = (typeof PROFILES)[number]
