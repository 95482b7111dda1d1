import type { PlannedNames } from '../core/iam/catalogue.ts'

const crud = (plural: string, singular: string): string =>
  `List${plural} Get${singular} Create${singular} Update${singular} Delete${singular}`
const versions = (singular: string): string => `List${singular}Versions Get${singular}Version Restore${singular}Version`

/** Actions of modules to come, by the module that policies name. */
const actions: Record<string, string> = {
  oauth: 'GrantConsent ListGrants RevokeGrant ListClients DeleteClient',
  workflows: `${crud('Workflows', 'Workflow')} ${versions('Workflow')}`,
  tasks: 'ListTasks GetTask CreateTask UpdateTask TransitionTask DeleteTask PauseTask ResumeTask RetryTask',
  playbooks: `${crud('Playbooks', 'Playbook')} ValidatePlaybook ${versions('Playbook')} StartExecution ListExecutions
    GetExecution CompleteStep SkipStep RetryExecution CancelExecution`,
  cases: 'ExportCase ListExports GetExport',
  evaluations: 'ListDatasets GetDataset CreateDataset DeleteDataset ListEvals GetEval CreateEval DeleteEval RunEval',
  formations: `${crud('Formations', 'Formation')} PlanFormation ListFormationEvents ValidateFormation`,
}

/** Resource types to come. */
const types = `oauth_client oauth_grant
  workflow task playbook dataset eval
  formation knowledge eval_run playbook_execution playbook_export`

const changes = 'created updated deleted'

/** Events to come, by their prefix. */
const events: Record<string, string> = {
  workflows: changes,
  tasks: `${changes} transitioned closed stalled paused resumed approval_failed automation_retrying automation_rejected
    automation_unrouted`,
  playbooks: changes,
  playbook_executions: 'started completed failed cancelled step_waiting step_completed step_overdue',
  playbook_exports: 'completed failed',
  datasets: changes,
  evals: changes,
  eval_runs: 'completed failed',
  formations: 'deployed failed deleted delete_failed',
}

const words = (text: string): string[] => text.trim().split(/\s+/)

const named = (groups: Record<string, string>, separator: string): string[] =>
  Object.entries(groups).flatMap(([group, names]) => words(names).map(name => `${group}${separator}${name}`))

export const plannedNames: PlannedNames = {
  actions: named(actions, ':'),
  types: words(types),
  events: named(events, '.'),
}
