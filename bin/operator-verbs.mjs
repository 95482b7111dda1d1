/** Commands that work on the database or the sources; all others are clients of the API. */
export const OPERATOR_VERBS = {
  up: 'run web, worker and a demo, and an embedded database unless DATABASE_URL is set',
  migrate: 'migrate the database to this version; waits while another process migrates',
  bootstrap: 'create the first admin',
  doctor: 'check configuration, database, queues, workers, keys and clock',
  modules: 'list modules, operations, queues, events and other names of this release',
  reprocess: 'repeat failed or orphaned work',
  'secrets verify': 'count encrypted values by key; exits 1 if a key is missing',
  'secrets reencrypt':
    'encrypt all values with the current key; can be interrupted and repeated; exits 1 if values remain',
  'oauth rotate-keys': 'create a new signing key for id_tokens; the previous key verifies for one day',
  settings: 'list all settings with their defaults',
  docs: 'work with the documentation',
  bench: 'measure this checkout: requests, files, turns, deliveries, searches, ingestion',
  'llm-double': 'serve, check and record scripted answers of models',
}
