/** Texts of what several views share. */

export const product = 'Muster'
export const close = 'Close'
export const cancel = 'Cancel'
export const save = 'Save'
export const saveWarning = 'Saved, with a warning'
export const create = 'Create'
export const edit = 'Edit'
export const remove = 'Delete'
export const expires = 'Expires'
export const actions = 'Actions'
export const completions = 'Completions'
export const name = 'Name'
export const version = 'Version'
export const updated = 'Updated'
export const text = 'Text'
export const table = 'Table'
export const status = 'Status'
export const created = 'Created'
export const json = 'JSON'
export const record = 'Record'
export const versions = 'Versions'
export const state = 'State'
export const started = 'Started'
export const copy = 'Copy'
export const copied = 'Copied'
export const retry = 'Try again'
export const open = 'Open'
export const none = '—'
export const you = 'You'
export const nothingFound = 'Nothing found'
export const more = 'Show more'
export const less = 'Show less'
export const loading = 'Loading'
export const skip = 'Skip to content'
export const failed = {
  title: 'This could not be loaded',
  action: 'This did not work',
  offline: 'The service does not answer. Check the connection, then try again.',
  requestId: 'Request ID',
  docs: 'About this error',
  copyReport: 'Copy details',
  stale: 'The last refresh failed. What you see may be old.',
  crashed: 'This view stopped with an error',
} as const

export const refused = {
  title: 'You may not see this',
  needs: (action: string) => `It needs the permission ${action}. An administrator of the deployment can grant it.`,
  general: 'Your permissions do not include it. An administrator of the deployment can grant them.',
} as const

export const missing = {
  title: 'Not found',
  text: 'It does not exist, was deleted, or belongs to a project that you cannot see.',
  back: 'Back to the start',
} as const

export const list = { search: 'Find by name', all: (what: string) => `${what}: all` } as const
export const savedViews = {
  title: 'Saved views',
  none: 'No saved view yet',
  save: 'Save these filters',
  replace: 'Replace',
  rename: (name: string) => `Rename ${name}`,
  remove: (name: string) => `Delete ${name}`,
  removeText: 'Only the saved filters are deleted. They are yours alone.',
  titles: { save: 'Save these filters', rename: 'Rename the saved view', delete: 'Delete the saved view' },
} as const

export const tags = {
  title: 'Tags',
  none: 'No tags',
  edit: 'Edit tags',
  help: 'Each as key=value. Enter adds one.',
  filter: 'Tag, such as team=desk',
} as const

export const form = {
  required: 'This field is required',
  notJson: 'This is not JSON',
  notObject: 'This is not a JSON object',
  changed: 'Another person has changed this record',
  clear: (field: string) => `Clear ${field}`,
  remove: 'Remove',
  removeEntry: (name: string) => `Remove ${name}`,
  restored: 'This contains what you entered before and did not send.',
  discard: 'Discard',
} as const

export const reference = {
  foreign: (name: string) => `${name} (another project)`,
  missing: (id: string) => `${id} (not found)`,
  missingText: 'It does not exist in this project, or was deleted.',
  byId: (id: string) => `ID ${id}`,
  searching: 'Searching ...',
} as const

export const compare = {
  withPrevious: 'Compare with the version before',
  swap: 'Swap',
  /** Words that both texts have, left out between two differences. */
  equal: (words: number) => ` … ${words.toLocaleString()} equal words … `,
  authors: { user: 'User', api_key: 'Key', system: 'System', unknown: 'Author unknown' } as Record<string, string>,
} as const

export const value = {
  open: 'Open whole',
  search: 'Find in the text',
  next: 'Next',
  download: 'Download',
  file: 'value.txt',
  found: (line: number) => `Found in line ${line}. `,
  cut: 'Only the first 5 MB are shown. The download has all of it.',
} as const

export const filtered = { title: 'Nothing matches the filters', clear: 'Clear filters' } as const
export const scriptMissing = {
  title: 'This view could not be loaded',
  text: 'The connection failed, or a new version was installed. What you entered is kept.',
} as const

export const fieldChanges = { title: 'Differences', same: 'No difference' } as const
export const statuses = {
  completed: 'Completed',
  failed: 'Failed',
  in_progress: 'Running',
  queued: 'Queued',
  requires_action: 'Awaiting an answer',
  awaiting_input: 'Awaiting input',
  sleeping: 'Sleeping',
  waiting: 'Waiting',
  cancelled: 'Cancelled',
  canceled: 'Cancelled',
  open: 'Open',
  acknowledged: 'Acknowledged',
  pending: 'Not started',
  running: 'Running',
  succeeded: 'Succeeded',
  skipped: 'Skipped',
  approved: 'Approved',
  rejected: 'Rejected',
  expired: 'Expired',
  creating: 'Creating',
  updating: 'Updating',
  deleting: 'Deleting',
  delete_failed: 'Delete failed',
  created: 'Created',
  updated: 'Updated',
  in_sync: 'As declared',
  drifted: 'Differs',
  missing: 'Missing',
  not_supported: 'Cannot be compared',
  active: 'Active',
  inactive: 'Inactive',
} as Record<string, string>

export const when = { now: 'just now' } as const

export const entries = {
  add: (one: string) => `Add ${one.toLowerCase()}`,
  numbered: (one: string, number: number) => `${one} ${number}`,
  up: (name: string) => `Move ${name} up`,
  down: (name: string) => `Move ${name} down`,
  remove: (name: string) => `Remove ${name}`,
} as const
