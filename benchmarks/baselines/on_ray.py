"""A training on Ray as the train step starts it: a cluster on this machine, then `training.supervision.launch`."""

from training.attempts.job import TrainingJob
from training.ray_cluster.cluster import ray_cluster
from training.records import TrainedModel
from training.supervision.launch import launch


def launch_on_ray(job: TrainingJob) -> TrainedModel:
    """Start Ray, train to the end, end Ray."""
    with ray_cluster(job.settings):
        return launch(job)
