import type { DeciderQuestion, Decision } from '@muster/client'
import { getDeciderVersion, getDecision } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { useIds } from '#address.ts'
import { api, BUSY_MS, every } from '#api.ts'
import { EntityLink } from '#components/entity-link.tsx'
import { Page } from '#components/page.tsx'
import { Facts, IdLine, LabelledValues, Section } from '#components/record.tsx'
import { RecordPage } from '#components/record-page.tsx'
import { When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { AnsweredBy, Outcome } from './decisions.tsx'

const texts = strings.deciders

/** A decision: the answers to the questions of the version that made it, and its turn. */
export function DecisionView() {
  const { decisionId } = useIds()
  return (
    <RecordPage<Decision, { decision_id: string }>
      queryKey={['decision', decisionId]}
      get={getDecision}
      ids={{ decision_id: decisionId }}
      refetchInterval={query =>
        ['queued', 'running'].includes(query.state.data?.status ?? '') ? every(BUSY_MS)(query) : false
      }
    >
      {decision => <DecisionPage decision={decision} />}
    </RecordPage>
  )
}

/** Returns the questions of a decision: its own, or the questions of the version of its decider. */
function useQuestions({ decider_id, decider_version, questions }: Decision): DeciderQuestion[] {
  const isAllowed = usePermissions(useProjectId())
  const { data } = useQuery({
    queryKey: ['decider', decider_id, 'version', decider_version],
    queryFn: async ({ signal }) =>
      getDeciderVersion(api, { decider_id: decider_id as string, version: String(decider_version) }, { signal }),
    enabled: decider_id !== null && decider_version !== null && isAllowed(getDeciderVersion) === true,
    staleTime: Number.POSITIVE_INFINITY,
  })
  return questions ?? (data?.config as { questions?: DeciderQuestion[] } | undefined)?.questions ?? []
}

function DecisionPage({ decision }: { decision: Decision }) {
  const projectId = useProjectId()
  const { id, decider_id, decider_version, generation_id, metadata, created_at } = decision
  const questions = useQuestions(decision)
  return (
    <Page title={texts.decision}>
      <Section title={texts.answers}>
        <Outcome decision={decision} questions={questions} />
      </Section>
      <Section title={texts.decision}>
        <Facts
          facts={[
            [
              texts.decider,
              decider_id ? (
                <EntityLink key="decider" kind="decider" id={decider_id} projectId={projectId} />
              ) : (
                texts.inline
              ),
            ],
            [strings.version, decider_version],
            [texts.answeredBy, <AnsweredBy key="by" {...decision} />],
            [
              texts.turn,
              generation_id && <EntityLink key="turn" kind="generation" id={generation_id} projectId={projectId} />,
            ],
            [strings.created, <When key="created" at={created_at} />],
          ]}
        />
        <LabelledValues values={[[texts.metadata, metadata]]} />
        <IdLine id={id} />
      </Section>
    </Page>
  )
}
