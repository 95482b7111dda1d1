import { Alert, Badge, Button, Card, Checkbox, Group, JsonInput, Stack, Text, Textarea, TextInput } from '@mantine/core'
import type { FormationPlan, FormationPlanChange, FormationWithResources } from '@muster/client'
import { createFormation, planFormation, updateFormation } from '@muster/client/operations'
import { IconAlertTriangle } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { api } from '#api.ts'
import { useAction } from '#components/actions.tsx'
import { useDraft } from '#components/draft.tsx'
import { FieldChanges } from '#components/field-changes.tsx'
import { Page } from '#components/page.tsx'
import { Section } from '#components/record.tsx'
import { parseObject } from '#components/schema-form.tsx'
import { FailureAlert } from '#components/states.tsx'
import { StatusBadge } from '#components/status.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.formations

const EXAMPLE = `parameters:
  Model:
    default: gpt-5.2
resources:
  Helper:
    type: agent
    properties:
      name: Helper
      model: { param: Model }
      instructions: Answer briefly.
outputs:
  AgentId: { ref: Helper }
`

/** Form of a new formation. */
export function NewFormation() {
  const projectId = useProjectId()
  return (
    <Page title={texts.create} intro={texts.emptyText}>
      <FormationPlanner projectId={projectId} />
    </Page>
  )
}

type Planned = { template: string; parameters: Record<string, string> }

/** A template with its parameters: its plan as a difference to what exists, and its application. */
export function FormationPlanner({ projectId, formation }: { projectId: string; formation?: FormationWithResources }) {
  const navigate = useNavigate()
  const isAllowed = usePermissions(projectId)
  const stored = formation ? JSON.stringify(formation.template, null, 2) : ''
  // Parameters may be secrets: they are not kept.
  const draft = useDraft(`template ${formation?.updated_at ?? ''}`, {
    name: '',
    template: formation ? stored : EXAMPLE,
  })
  const { name, template } = draft.value
  const set = (change: Partial<typeof draft.value>) => draft.setValue(all => ({ ...all, ...change }))
  const [parameters, setParameters] = useState('')
  const [isProtected, setProtected] = useState(false)
  const parsed = parameters.trim() ? parseObject(parameters) : {}
  const isChanged = !formation || template !== stored
  const plan = useAction<Planned, FormationPlan>({
    run: async ({ template, parameters }) =>
      planFormation(api, {
        project_id: projectId,
        ...(isChanged ? { template } : {}),
        ...(formation ? { formation_id: formation.id, save: true } : {}),
        ...(Object.keys(parameters).length > 0 ? { parameters } : {}),
      }),
  })
  const apply = useAction<void, { id: string }>({
    run: async () =>
      formation
        ? updateFormation(api, {
            formation_id: formation.id,
            plan_id: plan.data?.plan_id,
            // The plan shows which changes by others it overwrites.
            force_conflicts: true,
            wait: false,
          })
        : createFormation(api, {
            project_id: projectId,
            name: name.trim(),
            template,
            ...(parsed && Object.keys(parsed).length > 0 ? { parameters: parsed as Record<string, string> } : {}),
            ...(isProtected ? { termination_protection: true } : {}),
            wait: false,
          }),
    stale: [['formations'], ['formation', formation?.id]],
    onDone: ({ id }) => {
      draft.forget()
      void navigate({ to: `/p/${projectId}/formations/${id}`, search: { tab: 'operations' } })
    },
  })
  const isCurrent =
    plan.data &&
    plan.variables?.template === template &&
    JSON.stringify(plan.variables.parameters) === JSON.stringify(parsed)
  const mayApply = isAllowed(formation ? updateFormation : createFormation)
  return (
    <Stack gap="lg">
      <Section title={texts.template}>
        <form
          onSubmit={event => {
            event.preventDefault()
            if (parsed) plan.mutate({ template, parameters: parsed as Record<string, string> })
          }}
        >
          <Stack gap="md">
            {!formation && (
              <TextInput
                label={strings.name}
                description={texts.nameHelp}
                value={name}
                onChange={event => set({ name: event.currentTarget.value })}
                required
                data-autofocus
              />
            )}
            <Textarea
              label={texts.template}
              description={formation ? texts.templateEdit : texts.templateHelp}
              value={template}
              onChange={event => set({ template: event.currentTarget.value })}
              classNames={{ input: 'mono' }}
              autosize
              minRows={8}
              maxRows={28}
              spellCheck={false}
              required
            />
            <JsonInput
              label={texts.parameters}
              description={texts.parametersHelp}
              value={parameters}
              onChange={setParameters}
              error={parsed ? null : strings.inbox.wrongJson}
              classNames={{ input: 'mono' }}
              autosize
              minRows={2}
              maxRows={12}
            />
            {!formation && (
              <Checkbox
                label={texts.protect}
                description={texts.protectText}
                checked={isProtected}
                onChange={event => setProtected(event.currentTarget.checked)}
              />
            )}
            {plan.error && <FailureAlert error={plan.error} />}
            <Group>
              <Button
                type="submit"
                variant={isCurrent ? 'default' : 'filled'}
                loading={plan.isPending}
                disabled={!parsed || !template.trim()}
              >
                {isChanged ? texts.plan : texts.planStored}
              </Button>
            </Group>
          </Stack>
        </form>
      </Section>
      {isCurrent && plan.data && (
        <Section title={texts.planned}>
          <Changes plan={plan.data} />
          {apply.error && <FailureAlert error={apply.error} />}
          {mayApply && (
            <Group>
              <Button loading={apply.isPending} disabled={!formation && !name.trim()} onClick={() => apply.mutate()}>
                {formation ? texts.apply : strings.create}
              </Button>
            </Group>
          )}
        </Section>
      )}
    </Stack>
  )
}

/** The changes of a plan. */
export function Changes({ plan: { changes, unauthorized_actions = [] } }: { plan: FormationPlan }) {
  const shown = changes.filter(({ action }) => action !== 'no-op')
  return (
    <Stack gap="md">
      {unauthorized_actions.length > 0 && (
        <Alert color="red" icon={<IconAlertTriangle />} title={texts.unauthorized}>
          {unauthorized_actions.map(({ logical_id, action }) => (
            <Text size="sm" key={`${logical_id} ${action}`}>
              {visible(logical_id)}: <span className="mono">{action}</span>
            </Text>
          ))}
        </Alert>
      )}
      <Text role="status">{texts.summary(shown.length, changes.length - shown.length)}</Text>
      {shown.map(change => (
        <Change key={change.logical_id} change={change} />
      ))}
    </Stack>
  )
}

function Change({ change }: { change: FormationPlanChange }) {
  const { logical_id, resource_type, action, replaces, diff, overwrites = [] } = change
  return (
    <Card withBorder padding="md" radius="md" component="article" aria-label={visible(logical_id)}>
      <Stack gap="sm">
        <Group gap="sm">
          <StatusBadge status={action} label={texts.actions[action]} />
          <Text fw={600}>{visible(logical_id)}</Text>
          <Text size="sm" c="dimmed" className="mono">
            {visible(resource_type)}
          </Text>
          {replaces && <Badge variant="default">{texts.replaces}</Badge>}
        </Group>
        {diff && <FieldChanges before={diff.current ?? {}} after={diff.desired} />}
        {overwrites.map(({ field, changed_by, changed_at }) => (
          <Text size="sm" key={field}>
            {texts.overwrites(visible(field), changed_by)} <When at={changed_at} />
          </Text>
        ))}
      </Stack>
    </Card>
  )
}
